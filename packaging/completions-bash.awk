# The bash part of completions.sh.

function start(command, summary)
{
    if (command != "")
        commands = commands (commands == "" ? "" : " ") command
    all = ""
    cases = ""
}

function option(letter, name, arg, kind, words, text, pattern)
{
    all = all " --" name
    pattern = (letter == "" ? "" : "-" letter " | ") "--" name
    if (kind == "words")
        cases = cases "            " pattern ") kind='words' words='" words "' ;;\n"
    else if (kind != "")
        cases = cases "            " pattern ") kind='" kind "' ;;\n"
}

function finish()
{
    body = body "    " (command == "" ? "*" : command) ")\n        options='" substr(all, 2) "'\n        case $previous in\n" \
        cases "        esac\n        ;;\n"
}

function done(id)
{
    id = tool
    gsub(/-/, "_", id)
    print "# bash completion of " tool "; written by packaging/completions.sh"
    print "_" id "()"
    print "{"
    print "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} kind=none words='' options=''"
    # bash splits --option=value at the sign.
    print "    if [ \"$current\" = = ]; then"
    print "        current=''"
    print "    elif [ \"$previous\" = = ]; then"
    print "        previous=${COMP_WORDS[COMP_CWORD - 2]}"
    print "    fi"
    if (commands != "") {
        print "    if [ \"$COMP_CWORD\" = 1 ]; then"
        print "        mapfile -t COMPREPLY < <(compgen -W '" commands " --help --version' -- \"$current\")"
        print "        return"
        print "    fi"
    }
    print "    case ${COMP_WORDS[1]} in"
    printf "%s", body
    print "    esac"
    print "    case $kind:$current in"
    print "    words:*) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\") ;;"
    print "    any:*) COMPREPLY=() ;;"
    print "    none:-*) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\") ;;"
    print "    *) mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;"
    print "    esac"
    print "}"
    print "complete -o filenames -F _" id " " tool
}
