/* Counts bank conflicts of table lookups. */
#include "tests/support/vbanks.h"

#include <string.h>

enum { WORD = 4, BANKS = 32 };

uint32_t vbanks_wavefronts(const uint32_t *addresses, uint32_t bytes)
{
    uint32_t lanes = VPTQ_CUDA_LINE / bytes, clocks = 0;
    for (uint32_t first = 0; first < VPTQ_CUDA_LANES; first += lanes) {
        uint32_t words[BANKS][BANKS], count[BANKS] = {0}, most = 0;
        for (uint32_t l = first; l < first + lanes; l++) {
            for (uint32_t byte = 0; byte < bytes; byte += WORD) {
                uint32_t word = (addresses[l] + byte) / WORD, bank = word % BANKS, i = 0;
                while (i < count[bank] && words[bank][i] != word)
                    i++;
                if (i == count[bank])
                    words[bank][count[bank]++] = word;
                most = count[bank] > most ? count[bank] : most;
            }
        }
        clocks += most;
    }
    return clocks;
}

/* Wavefronts of the accesses that fetch 32 centroids. */
static uint32_t fetch(const vptq_cuda_table *t, const uint32_t *rows)
{
    uint32_t addresses[VPTQ_CUDA_LANES], clocks = 0;
    for (uint32_t p = 0; p < t->pieces; p++) {
        for (uint32_t l = 0; l < VPTQ_CUDA_LANES; l++)
            addresses[l] = (p * t->rows + rows[l]) * VPTQ_CUDA_PIECE;
        clocks += vbanks_wavefronts(addresses, VPTQ_CUDA_PIECE);
    }
    for (uint32_t l = 0; t->tail && l < VPTQ_CUDA_LANES; l++)
        addresses[l] = t->pieces * t->rows * VPTQ_CUDA_PIECE + rows[l] * VPTQ_CUDA_TAIL;
    return t->tail ? clocks + vbanks_wavefronts(addresses, VPTQ_CUDA_TAIL) : clocks;
}

static void count_tile(const vptq_cuda_segment *s, size_t at, vbanks_count *n)
{
    uint32_t rows[VPTQ_CUDA_LANES];
    n->tiles++;
    for (uint32_t l = 0; l < VPTQ_CUDA_LANES; l++)
        rows[l] = s->codes[at + (size_t)l * VPTQ_CUDA_CHUNK_TILES];
    if (s->main.shared)
        n->main += fetch(&s->main, rows);
    if (!s->residual.k || !s->residual.shared)
        return;
    for (uint32_t l = 0; l < VPTQ_CUDA_LANES; l++)
        rows[l] = vbanks_residual_row(s, at + (size_t)l * VPTQ_CUDA_CHUNK_TILES, l);
    n->residual += fetch(&s->residual, rows);
}

static void set_means(vbanks_count *n)
{
    n->main_mean = n->tiles ? (double)n->main / (double)n->tiles : 0;
    n->residual_mean = n->tiles ? (double)n->residual / (double)n->tiles : 0;
}

static vbanks_count count_segment(const vptq_cuda_segment *s)
{
    vbanks_count n = {0};
    for (uint32_t pair = 0; pair < s->pairs; pair++) {
        for (uint32_t chunk = 0; chunk < s->chunks; chunk++) {
            for (uint32_t tile = 0; tile < VPTQ_CUDA_CHUNK_TILES; tile++)
                count_tile(s, vptq_cuda_code_at(s, pair, chunk, tile, 0), &n);
        }
    }
    return n;
}

vbanks_count vbanks_count_layout(const vptq_cuda_layout *l)
{
    vbanks_count n = {0};
    for (uint32_t i = 0; i < l->segments; i++) {
        vbanks_count one = count_segment(&l->segment[i]);
        n.tiles += one.tiles;
        n.main += one.main;
        n.residual += one.residual;
    }
    set_means(&n);
    return n;
}
