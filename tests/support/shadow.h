/* A backend for tests whose ops take arrays in host memory and call the ops of a real device
 * with copies. The op tests, which use plain arrays, run on a GPU through it. On the emulated
 * device it also finds ops that touch host memory or an array that was not copied.
 *
 * Every array is uploaded before the op and, if the op writes to it, downloaded afterwards,
 * including the gaps between its rows. */
#ifndef VPTQ_TESTS_SUPPORT_SHADOW_H
#define VPTQ_TESTS_SUPPORT_SHADOW_H

#include "lib/backend/backend.h"

/* Returns the shadow of `dev`, which must be open, with the name and description of `dev`.
 * Closing the shadow closes `dev`. Only one shadow may be open at a time. */
vptq_device shadow_of(const vptq_device *dev);

#endif
