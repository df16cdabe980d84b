/* Internal: finds models in the local cache of the Hugging Face hub, which `hf download` fills:
 * CACHE/models--ORG--NAME/refs/REVISION names a commit, and snapshots/COMMIT/ holds links to
 * the files of that commit.  Never uses the network.
 * https://huggingface.co/docs/huggingface_hub/guides/manage-cache */
#ifndef VPTQ_FORMATS_HF_HUB_H
#define VPTQ_FORMATS_HF_HUB_H

#include "lib/base/file.h"

enum { VPTQ_HUB_PATH = 4096 };

/* found = the directory or file to read for MODEL `path`:
 * - ORG/NAME or ORG/NAME@REVISION, if no such path exists: the snapshot in the cache
 *   ($HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or
 *   $HOME/.cache/huggingface/hub).  Without a revision that of `main`, or the only one;
 * - a model's folder in a cache, recognized by its name or by snapshots/ and refs/ without a
 *   config.json: its snapshot, in the same way;
 * - anything else: `path` itself, whether it exists or not.
 * Errors name the snapshots to choose from, or the command that downloads the model.  A
 * snapshot that is itself a link out of the model's folder is refused. */
vptq_status vptq_hub_find(const char *path, vptq_mem *mem, char found[VPTQ_HUB_PATH],
                          vptq_err *err) VPTQ_MUST_CHECK;

#endif
