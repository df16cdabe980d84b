/* Inside lib/encoder: from the encoder's state to the picture that readers have of the matrix.
 */
#ifndef VPTQ_ENCODER_STORE_H
#define VPTQ_ENCODER_STORE_H

#include "lib/encoder/encoder.h"

/* Scale and bias are rounded here where that is not done yet; codebooks must be. */
vptq_status vptq_store(vptq_encoder *c, vptq_encoder_result *result, vptq_err *err);

#endif
