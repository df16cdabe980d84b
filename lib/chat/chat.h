/* Internal: prompts of chats: renders messages with the chat template of a model, and finds
 * the token that ends a reply. */
#ifndef VPTQ_CHAT_CHAT_H
#define VPTQ_CHAT_CHAT_H

#include "lib/base/buf.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

/* Appends the rendered messages with the beginning of a reply.  As in transformers, the text
 * contains its own BOS and special tokens: encode it with VPTQ_ENCODE_SPECIAL only.
 *
 * The template is the first that exists of: the one of the options, chat_template.jinja,
 * `chat_template` of tokenizer_config.json (of a list "default"), chat_template.json, all next
 * to the tokenizer, and tokenizer.chat_template of a GGUF file.  Its variables: messages,
 * add_generation_prompt, tools and documents (none unless given), the special tokens by their
 * names in tokenizer_config.json (bos_token ...), and the arguments.
 *
 * `stop` (may be NULL) gets the special token that follows a reply in this template.
 * Errors: VPTQ_E_ARG for options, VPTQ_E_FORMAT for files and what the template refuses. */
vptq_status vptq_chat_prompt(const vptq_ctx *ctx, const vptq_model *m,
                             const vptq_chat_options *o, vptq_buf *prompt, vptq_ids *stop,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
