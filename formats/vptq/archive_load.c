/* Unpacking entries of a .vptq archive: whole, in part, or only to see whether they are sound.
 */
#include <stdlib.h>
#include <zstd.h>

#include "formats/vptq/archive_internal.h"
#include "formats/vptq/archive_layout.h"
#include "lib/base/parallel.h"

/* What a thread works with. */
typedef struct worker {
    ZSTD_DCtx *zstd;
    uint8_t *packed, *planes, *raw; /* of one frame */
} worker;

typedef enum { SOUND, UNREADABLE, BAD_HASH, BAD_FRAME } verdict;

typedef struct load_job {
    const vptq_archive *archive;
    const vptq_archive_frame *frames; /* of the entry */
    size_t first, planes;             /* first frame that is looked at */
    uint64_t begin, end;              /* bytes of the entry that are wanted */
    uint8_t *dst;                     /* for them; NULL: nothing is kept */
    worker *workers;
    uint8_t *verdicts; /* by frame, from `first` on */
} load_job;

/* The file's bytes are held against their checksum before zstd sees them, and what it makes of
 * them against its own. */
static verdict unpack_frame(const load_job *job, const vptq_archive_frame *f, worker *w,
                            uint8_t *dst)
{
    enum { DESCRIPTOR = 4, HAS_CHECKSUM = 4 };
    if (vptq_file_read_at(&job->archive->file, f->offset, w->packed, f->packed, NULL))
        return UNREADABLE;
    if (vptq_hash(w->packed, f->packed, 0) != f->hash)
        return BAD_HASH;
    if (ZSTD_getFrameContentSize(w->packed, f->packed) != f->raw ||
        ZSTD_findFrameCompressedSize(w->packed, f->packed) != f->packed ||
        !(w->packed[DESCRIPTOR] & HAS_CHECKSUM))
        return BAD_FRAME;
    size_t n = ZSTD_decompressDCtx(w->zstd, dst, f->raw, w->packed, f->packed);
    return ZSTD_isError(n) || n != f->raw ? BAD_FRAME : SOUND;
}

static void join_planes(const uint8_t *src, size_t n, size_t planes, uint8_t *dst)
{
    size_t count = n / planes;
    for (size_t p = 0; p < planes; p++)
        for (size_t e = 0; e < count; e++)
            dst[e * planes + p] = src[p * count + e];
}

/* Frame i of the entry; what of it is wanted goes to its place. */
static verdict load_frame(const load_job *job, size_t i, worker *w)
{
    const vptq_archive_frame *f = &job->frames[i];
    uint64_t begin = (uint64_t)i * VPTQ_ARCHIVE_FRAME_RAW, end = begin + f->raw;
    bool whole = job->dst && begin >= job->begin && end <= job->end;
    uint8_t *raw = whole ? job->dst + (begin - job->begin) : w->raw;
    verdict v = unpack_frame(job, f, w, job->planes > 1 ? w->planes : raw);
    if (v || !job->dst)
        return v;
    if (job->planes > 1)
        join_planes(w->planes, f->raw, job->planes, raw);
    if (whole)
        return SOUND;
    uint64_t from = begin > job->begin ? begin : job->begin;
    uint64_t to = end < job->end ? end : job->end;
    memcpy(job->dst + (from - job->begin), raw + (from - begin), (size_t)(to - from));
    return SOUND;
}

static void load_frames(void *arg, size_t begin, size_t end, int thread)
{
    const load_job *job = arg;
    for (size_t i = begin; i < end; i++)
        job->verdicts[i] = (uint8_t)load_frame(job, job->first + i, &job->workers[thread]);
}

static vptq_status prepare(load_job *job, size_t frames, size_t threads, vptq_arena *arena,
                           vptq_err *err)
{
    size_t packed = 0, raw = 0;
    for (size_t i = job->first; i < job->first + frames; i++) {
        packed = job->frames[i].packed > packed ? job->frames[i].packed : packed;
        raw = job->frames[i].raw > raw ? job->frames[i].raw : raw;
    }
    job->verdicts = vptq_arena_zalloc(arena, frames, 1, err);
    job->workers = vptq_arena_zalloc(arena, threads, sizeof *job->workers, err);
    if (!job->verdicts || !job->workers)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < threads; i++) {
        worker *w = &job->workers[i];
        w->packed = vptq_arena_alloc(arena, packed, 1, err);
        w->raw = vptq_arena_alloc(arena, raw, 1, err);
        w->planes = vptq_arena_alloc(arena, job->planes > 1 ? raw : 0, 1, err);
        if (!w->packed || !w->raw || !w->planes)
            return VPTQ_E_NOMEM;
        w->zstd = ZSTD_createDCtx();
        if (!w->zstd)
            return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory for decompression",
                             job->archive->path);
    }
    return VPTQ_OK;
}

/* The first frame that is not sound, in words. */
static vptq_status judge(const load_job *job, const vptq_archive_entry *e, size_t frames,
                         vptq_err *err)
{
    size_t i = 0;
    while (i < frames && job->verdicts[i] == SOUND)
        i++;
    if (i == frames)
        return VPTQ_OK;
    const vptq_archive_frame *f = &job->frames[job->first + i];
    const char *what = e->is_tensor ? "tensor" : "file";
    unsigned number = (unsigned)(job->first + i) + 1;
    if (job->verdicts[i] == UNREADABLE) /* once more, for the system's words */
        return vptq_file_read_at(&job->archive->file, f->offset, job->workers[0].packed,
                                 f->packed, err)
                   ? VPTQ_E_IO
                   : vptq_fail(err, VPTQ_E_IO, "cannot read '%s'", job->archive->path);
    return vptq_fail(err, VPTQ_E_CHECKSUM, "%s: %s '%s' is damaged: frame %u of %u %s",
                     job->archive->path, what, e->name, number, (unsigned)e->frame_count,
                     job->verdicts[i] == BAD_HASH ? "does not match its checksum"
                                                  : "is not what its record says");
}

/* Bytes [at, at + n) of the entry into dst; without dst all of it is only checked. */
static vptq_status load(const vptq_archive *a, const vptq_archive_entry *e, uint64_t at,
                        uint64_t n, int threads, void *dst, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_BUG_IF(at > e->size || n > e->size - at);
    if (n == 0)
        return VPTQ_OK;
    size_t first = (size_t)(at / VPTQ_ARCHIVE_FRAME_RAW);
    size_t frames = (size_t)((at + n - 1) / VPTQ_ARCHIVE_FRAME_RAW) + 1 - first;
    size_t used = threads < 1 ? 1 : (size_t)threads;
    used = used < frames ? used : frames;
    vptq_arena arena;
    vptq_arena_init(&arena, a->mem);
    load_job job = {.archive = a,
                    .frames = a->frames + e->first_frame,
                    .first = first,
                    .planes = a->planes[e - a->entries],
                    .begin = at,
                    .end = at + n,
                    .dst = dst};
    VPTQ_TRY(prepare(&job, frames, used, &arena, err));
    vptq_parallel_for((int)used, frames, 1, load_frames, &job);
    st = judge(&job, e, frames, err);
out:
    for (size_t i = 0; job.workers && i < used; i++)
        ZSTD_freeDCtx(job.workers[i].zstd);
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_archive_load(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                              void *dst, vptq_err *err)
{
    return load(a, e, 0, e->size, threads, dst, err);
}

vptq_status vptq_archive_load_part(const vptq_archive *a, const vptq_archive_entry *e,
                                   uint64_t at, size_t n, int threads, void *dst, vptq_err *err)
{
    return load(a, e, at, n, threads, dst, err);
}

vptq_status vptq_archive_verify(const vptq_archive *a, const vptq_archive_entry *e, int threads,
                                vptq_err *err)
{
    return load(a, e, 0, e->size, threads, NULL, err);
}
