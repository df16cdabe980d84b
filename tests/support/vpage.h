/* Checks HTML pages: elements close in order; nothing is external (no address, script or
 * import); ids are unique and links find their target; in a picture, by estimated widths, every
 * text lies within the borders and no two texts overlap. */
#ifndef VPTQ_TESTS_SUPPORT_VPAGE_H
#define VPTQ_TESTS_SUPPORT_VPAGE_H

#include <stddef.h>

/* Fails the test if the page breaks a rule; returns the number of pictures. */
size_t vpage_check(const char *page);

#endif
