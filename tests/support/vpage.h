/* What every page of ours must be: elements close in order, nothing comes from outside (no
 * address, script, import), ids are unique and links find theirs; in a picture every text lies
 * within its borders and none lies on another, as far as widths can be estimated. */
#ifndef VPTQ_TESTS_SUPPORT_VPAGE_H
#define VPTQ_TESTS_SUPPORT_VPAGE_H

#include <stddef.h>

/* Fails the test where it is not so; returns the number of pictures. */
size_t vpage_check(const char *page);

#endif
