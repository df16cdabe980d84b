# A run that is interrupted while it plans counts what earlier runs have finished, or nothing.
model=$(data models/stories260K-hf)
head -c 20000 "$(data text/tinystories/tiny.utf8)" >text
mkfifo pipe
# planning COMMAND..: interrupts the command, whose text never comes
planning()
{
    local pid writer
    rm -f opened
    sh -c 'exec >pipe; >opened; exec sleep 60' & # waits for a reader
    writer=$!
    "$@" >out.txt 2>err.txt &
    pid=$!
    wait_for 60 test -e opened
    interrupt "$pid"
    kill "$writer"
}
planning "$BIN/vptq-hessian" --no-progress -m "$model" -c pipe -n 4 -l 64 -o h
expect_line err.txt '^vptq-hessian: interrupted; run the same command to continue$'
quantize=("$BIN/vptq-quantize" --no-progress -m "$model" -n 4 -l 64 -k 16 -o work)
"${quantize[@]}" -c text >out.txt 2>err.txt
rm work/layer_002_up_proj.safetensors
planning "${quantize[@]}" -c pipe
expect_line err.txt '^vptq-quantize: interrupted; 34 of 35 matrices finished, run the same command to continue$'
