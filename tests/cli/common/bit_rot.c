/* Damages a copy of a file at a seeded place, and prints what was done.
 * usage: bit_rot FILE COPY flip|text|cut|line SEED NUMBER
 *
 * flip changes one bit, text one before the last line break; cut leaves the first bytes, line
 * does so within a line.  The first cuts are to 0, 1, half and all but one of the bytes.  A
 * file without bytes gets one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    FILE *in = fopen(argv[1], "rb");
    if (!in || fseek(in, 0, SEEK_END))
        die(argv[1]);
    const size_t size = (size_t)ftell(in);
    unsigned char *data = malloc(size + 1);
    rewind(in);
    if (!data || fread(data, 1, size, in) != size)
        die(argv[1]);
    fclose(in);

    const uint64_t seed = strtoull(argv[4], NULL, 10), number = strtoull(argv[5], NULL, 10);
    const uint64_t place = mix(mix(seed) ^ number);
    size_t keep = size;
    if (size == 0) {
        data[keep++] = (unsigned char)(place % 255 + 1);
        printf("a byte more\n");
    } else if (strcmp(argv[3], "flip") == 0 || strcmp(argv[3], "text") == 0) {
        const size_t at = (size_t)(place % (size - (argv[3][0] == 't')));
        const unsigned bit = (unsigned)(mix(place) % 8);
        data[at] = (unsigned char)(data[at] ^ (1U << bit));
        printf("bit %u of byte %zu flipped\n", bit, at);
    } else {
        const size_t first[] = {0, 1 % size, size / 2, size - 1};
        keep = number < 4 ? first[number] : (size_t)(place % size);
        /* lines that are missing as a whole are not damage */
        if (strcmp(argv[3], "line") == 0 && (keep == 0 || data[keep - 1] == '\n'))
            keep += keep + 1 < size;
        else if (strcmp(argv[3], "line") == 0 && data[keep] == '\n')
            keep--;
        printf("cut to %zu of %zu bytes\n", keep, size);
    }
    (void)remove(argv[2]); /* which may be a link to the file */
    FILE *out = fopen(argv[2], "wb");
    if (!out || fwrite(data, 1, keep, out) != keep || fclose(out))
        die(argv[2]);
    free(data);
    return 0;
}
