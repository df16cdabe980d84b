/* Internal: refuses to compile for processors that the project does not support. */
#ifndef VPTQ_BASE_TARGET_H
#define VPTQ_BASE_TARGET_H

#if __SIZEOF_POINTER__ != 8 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error                                                                                         \
    "vptq needs a 64-bit little-endian processor: it maps files larger than 4 GiB and uses their numbers in place"
#endif

#endif
