/* Settings with a name: the rows of the tables in the paper (Liu et al. 2024, Table 8: models
 * at about 2 bits; Table 10: ablation), as far as they decide what is stored. */
#ifndef VPTQ_ENCODER_PRESETS_H
#define VPTQ_ENCODER_PRESETS_H

#include "lib/encoder/settings.h"
#include "lib/vptq.h"

/* Sets what is stored, but the storage type, and the pass' columns where the row is about them;
 * VPTQ_E_ARG for a name that is not in the table. */
vptq_status vptq_preset_apply(const char *name, vptq_encoder_settings *s,
                              vptq_err *err) VPTQ_MUST_CHECK;
#endif
