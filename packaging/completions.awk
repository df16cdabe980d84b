# Reads the help texts that completions.sh collects, and calls for every command
#     start(command, summary)   option(letter, name, arg, kind, words, text)..   finish()
# and then done().  kind says what completes the argument: "" (there is none), "words", "file" or "any".

function kind_of(arg, copy)
{
    if (arg == "")
        return ""
    if (arg ~ /^[a-z0-9].*\|/)
        return "words"
    copy = arg
    gsub(/[^A-Z]/, " ", copy)
    return " " copy " " ~ / (MODEL|WORK|HDIR|PTDIR|DIR|OUT|FILE|TEXT|PATH|PACKED) / && arg !~ /[=,]/ ? "file" : "any"
}

# The choices of "greedy|beam[:N]" are "greedy beam".
function words_of(arg)
{
    gsub(/\[[^]]*\]/, "", arg)
    gsub(/\|/, " ", arg)
    return arg
}

# Hands over the option that was read last.
function flush()
{
    if (name == "")
        return
    kind = kind_of(arg)
    option(letter, name, arg, kind, kind == "words" ? words_of(arg) : "", text)
    name = ""
}

function end_command()
{
    flush()
    if (open)
        finish()
}

/^COMMAND/ {
    end_command()
    open = 1
    command = $2
    sub(/^COMMAND *[a-z]* */, "")
    start(command, $0)
    next
}
/^  (-[a-zA-Z], |    )--[a-z]/ {
    flush()
    line = $0
    letter = substr(line, 3, 1) == "-" ? substr(line, 4, 1) : ""
    sub(/^  (-[a-zA-Z], |    )--/, "", line)
    match(line, /^[a-z0-9-]+/)
    name = substr(line, 1, RLENGTH)
    line = substr(line, RLENGTH + 1)
    # An argument follows one space, the text at least two (or another line).
    arg = ""
    if (match(line, /^ [^ ]+/)) {
        arg = substr(line, 2, RLENGTH - 1)
        line = substr(line, RLENGTH + 1)
    }
    sub(/^ +/, "", line)
    text = line
    next
}
/^                              [^ ]/ && name != "" {
    sub(/^ +/, "")
    text = text (text == "" ? "" : " ") $0
    next
}
{ flush() }

END {
    end_command()
    done()
}
