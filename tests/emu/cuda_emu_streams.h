/* The contents of streams and recorded graphs: operations, in the order in which they were
 * given. */
#ifndef VPTQ_TESTS_EMU_CUDA_EMU_STREAMS_H
#define VPTQ_TESTS_EMU_CUDA_EMU_STREAMS_H

#include "tests/emu/cuda_emu.h"

typedef enum cuda_emu_op_kind {
    CUDA_EMU_OP_COPY,
    CUDA_EMU_OP_SET,
    CUDA_EMU_OP_WAIT,
    CUDA_EMU_OP_KERNEL,
    CUDA_EMU_OP_RECORD /* an event of a graph */
} cuda_emu_op_kind;

typedef struct cuda_emu_op {
    struct cuda_emu_op *next;
    cuda_emu_op_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;       /* of SET */
    void *staged;    /* of COPY: the source, if it was memory of the host that is not pinned */
    uint64_t seen;   /* of COPY: hash of a pinned source when the copy was queued */
    cudaStream_t on; /* of WAIT: for the first `upto` operations of this stream */
    unsigned long upto;
    cudaEvent_t event; /* of RECORD */
    cuda_emu_kernel kernel;
} cuda_emu_op;

typedef struct cuda_emu_ops {
    cuda_emu_op *first, *last;
} cuda_emu_ops;

/* Adds a copy of the operation, which takes over its memory. */
void cuda_emu_append(cuda_emu_ops *ops, const cuda_emu_op &what);
/* Takes the first operation out; the caller frees it with cuda_emu_free_op. */
cuda_emu_op *cuda_emu_take(cuda_emu_ops *ops);
void cuda_emu_free_op(cuda_emu_op *op);
/* Gives a stream the operation of a graph once more. */
void cuda_emu_repeat(const cuda_emu_op *op, cudaStream_t stream);
/* The operations recorded so far, if the stream is being recorded, or NULL. */
cuda_emu_ops *cuda_emu_recorded(cudaStream_t stream);

#endif
