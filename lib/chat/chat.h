/* Prompts of chats: where a model's template is, what is put into it, and what ends a turn. */
#ifndef VPTQ_CHAT_CHAT_H
#define VPTQ_CHAT_CHAT_H

#include "lib/base/buf.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

/* Appends what the template makes of the messages, with the beginning of a reply behind them.
 * Like transformers it is meant to be encoded with special tokens and without a BOS in front of
 * it: the template writes its own (vptq_tokenizer_encode with VPTQ_ENCODE_SPECIAL).
 *
 * The template is, in this order, that of the options, chat_template.jinja, `chat_template` of
 * tokenizer_config.json (a list: "default"), chat_template.json, all beside the tokenizer, and
 * tokenizer.chat_template of a GGUF file.  Its variables: messages, add_generation_prompt,
 * tools and documents (none unless given), the special tokens by the names of
 * tokenizer_config.json (bos_token ...), and the arguments.
 *
 * `ends` (may be NULL) gets the special token that follows a reply in this template.
 * Errors: VPTQ_E_ARG for options, VPTQ_E_FORMAT for files and what the template refuses. */
vptq_status vptq_chat_prompt(const vptq_ctx *ctx, const vptq_model *m,
                             const vptq_chat_options *o, vptq_buf *prompt, vptq_ids *ends,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Appends the ids that end a text: eos of the tokenizer, eos_token_id of config.json and of
 * generation_config.json (a number or a list), of a GGUF file also those that end a turn and a
 * message.  Each once, those outside the vocabulary not at all. */
vptq_status vptq_model_ends(const vptq_ctx *ctx, const vptq_model *m, vptq_ids *ends,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
