/* A table for tests whose rows take host memory and pass on copies in the memory of a device:
 * the op tests, which keep their numbers in plain arrays, run on a GPU through it, and the
 * emulated device shows rows that touch the host's memory or are not told of an array.
 *
 * An array goes to the device before the row and, if the row writes to it, comes back after it;
 * what lies between its rows goes along both ways. */
#ifndef VPTQ_TESTS_SUPPORT_SHADOW_H
#define VPTQ_TESTS_SUPPORT_SHADOW_H

#include "lib/backend/backend.h"

/* `dev` is open; the shadow of it (name and description are its own) closes it when it is
 * closed.  One at a time. */
vptq_device shadow_of(const vptq_device *dev);

#endif
