/* Internal: presets.  Named settings, one for each row of the paper's tables (Liu et al. 2024,
 * Table 8: models at about 2 bits; Table 10: ablation), as far as they decide what is stored.
 */
#ifndef VPTQ_ENCODER_PRESETS_H
#define VPTQ_ENCODER_PRESETS_H

#include "lib/encoder/settings.h"
#include "lib/vptq.h"

/* Sets everything that is stored, except the storage type, and pass_columns if the row is about
 * it.  VPTQ_E_ARG for an unknown name. */
vptq_status vptq_preset_apply(const char *name, vptq_encoder_settings *s,
                              vptq_err *err) VPTQ_MUST_CHECK;
#endif
