/* An open archive, as its files share it: archive.c reads the index, archive_load.c the frames.
 */
#ifndef VPTQ_FORMATS_VPTQ_ARCHIVE_INTERNAL_H
#define VPTQ_FORMATS_VPTQ_ARCHIVE_INTERNAL_H

#include "formats/vptq/archive.h"

typedef struct vptq_archive_frame {
    uint64_t offset, hash; /* in the file; of the packed bytes */
    uint32_t packed, raw;  /* bytes */
} vptq_archive_frame;

struct vptq_archive {
    vptq_mem *mem;
    vptq_file file;
    const char *path;
    vptq_arena arena;
    vptq_archive_frame *frames;
    vptq_archive_entry *entries;
    uint8_t *planes; /* by entry */
    size_t frame_count, entry_count;
    vptq_strmap names[2]; /* by kind */
};

#endif
