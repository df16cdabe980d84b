# Streams that are closed when a tool starts: no file that it opens becomes one of them.  Otherwise the output
# file would get what is printed.
model=$(data models/stories260K-hf)
tiny=$(data text/tinystories/tiny.utf8)
head -c 6000 "$tiny" >text
"$BIN/vptq-hessian" -q -m "$model" -c text -n 2 -l 64 --layers 0-0 -o h
"$BIN/vptq-quantize" -q -m "$model" -H h --layers 0-0 -k 16 -o w
ppl=("$BIN/vptq-eval" ppl -m "$model" --text text --context 64 --windows 2)
"${ppl[@]}" --dump want.f64 >/dev/null 2>&1
"$BIN/vptq-pack" w -o want.vptq >/dev/null 2>&1

# closed STREAMS COMMAND..: runs the command with some of i, o and e (standard input, output, error) closed.
closed()
{
    (
        case $1 in *i*) exec <&- ;; esac
        case $1 in *e*) exec 2>&- ;; esac
        case $1 in *o*) exec >&- ;; esac
        shift
        exec "$@"
    )
}

for streams in - i o e io ie oe ioe; do
    # without stdout there is nowhere to print the result
    case $streams in *o*) status=1 ;; *) status=0 ;; esac
    expect_exit $status closed $streams "${ppl[@]}" --dump got.f64 >out.txt 2>err.txt
    # what was computed stays, even if its row cannot be printed
    expect_same want.f64 got.f64 "with $streams closed"
    case $streams in
    o | io) expect_line err.txt 'vptq-eval: ' ;;
    esac
    expect_exit $status closed $streams "$BIN/vptq-quantize" -m "$model" -H h --layers 0-0 -k 16 -o got.w >out.txt 2>err.txt
    expect_same w got.w "with $streams closed"
    expect_exit $status closed $streams "$BIN/vptq-pack" w -o got.vptq >out.txt 2>err.txt
    expect_same want.vptq got.vptq "with $streams closed"
    expect_exit $status closed $streams "$BIN/vptq-pack" --list got.vptq >out.txt 2>err.txt
    expect_exit $status closed $streams "$BIN/vptq-eval" --help >out.txt 2>err.txt
    expect_exit $status closed $streams "$BIN/vptq-pack" --version >out.txt 2>err.txt
    expect_exit 2 closed $streams "$BIN/vptq-eval" nothing >out.txt 2>err.txt
    rm -rf got.*
done
no_leftovers .
