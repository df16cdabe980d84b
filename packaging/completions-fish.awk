# The fish part of completions.sh.

function quoted(text)
{
    gsub(/[\\']/, "\\\\&", text)
    return "'" text "'"
}

function start(command, summary)
{
    if (command == "")
        return
    if (!first++)
        head = head "complete -c " tool " -n __fish_use_subcommand -f\n"
    head = head "complete -c " tool " -n __fish_use_subcommand -a " command " -d " quoted(summary) "\n"
}

function option(letter, name, arg, kind, words, text, line)
{
    line = "complete -c " tool
    if (command != "")
        line = line " -n '__fish_seen_subcommand_from " command "'"
    line = line (letter == "" ? "" : " -s " letter) " -l " name
    if (kind == "words")
        line = line " -x -a " quoted(words)
    else if (kind == "file")
        line = line " -r -F"
    else if (kind == "any")
        line = line " -x"
    body = body line " -d " quoted(text) "\n"
}

function finish() {}

function done()
{
    print "# fish completion of " tool "; written by packaging/completions.sh"
    printf "%s%s", head, body
}
