# The zsh part of completions.sh.

# Text in single quotes, for a specification of _arguments.
function spec(text)
{
    gsub(/\[|\]|:|\\/, "\\\\&", text)
    gsub(/'/, "'\\''", text)
    return text
}

function start(command, summary)
{
    if (command != "")
        list = list "        '" command ":" spec(summary) "'\n"
    lines = ""
}

function option(letter, name, arg, kind, words, text, action, names)
{
    gsub(/:/, "\\:", words)
    action = kind == "words" ? "(" words ")" : kind == "file" ? "_files" : " "
    action = kind == "" ? "" : ":" spec(arg) ":" action
    names = kind == "" ? "--" name : "--" name "="
    if (letter != "")
        names = "{-" letter (kind == "" ? "" : "+") "," names "}"
    lines = lines " \\\n        '*'" names "'[" spec(text) "]" action "'"
}

function finish()
{
    if (command == "")
        body = body "    _arguments -s" lines " \\\n        '*:file:_files'\n"
    else
        body = body "    " command ")\n    _arguments -s" lines " \\\n        '*:file:_files' ;;\n"
}

function done(id)
{
    id = tool
    gsub(/-/, "_", id)
    print "#compdef " tool
    print "# written by packaging/completions.sh"
    print "_" id "()"
    print "{"
    if (list == "") {
        printf "%s", body
    } else {
        print "    local -a commands=("
        printf "%s", list
        print "    )"
        print "    if ((CURRENT == 2)); then"
        print "        _describe command commands"
        print "        return"
        print "    fi"
        print "    shift words"
        print "    ((CURRENT -= 1))"
        print "    case $words[1] in"
        printf "%s", body
        print "    esac"
    }
    print "}"
    print "_" id " \"$@\""
}
