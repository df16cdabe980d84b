# Lines as dataset rows: a nonblank line keeps its newline, a blank one is an empty row.
model=$(data models/stories260K-hf)
printf 'One day\n\n \nLily\nsaw' >rows
printf 'One day\n\n\n\n\n\n\nLily\n\n\nsaw' >plain
"$BIN/vptq-eval" ppl -m "$model" --text rows --rows --tokens-only -q >rows.ids
"$BIN/vptq-eval" ppl -m "$model" --text plain --tokens-only -q >plain.ids
expect_same rows.ids plain.ids
