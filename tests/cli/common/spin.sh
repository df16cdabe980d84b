# Idle OpenMP threads sleep soon: the tool sets the spin count in its own process before the
# runtime reads it, keeps a user's value, and leaves the environment as it was.
! nm -D "$BIN/vptq-eval" | grep -q ' U execv' || fail "the tool can start itself a second time"
spin()
{
    env "$@" OMP_DISPLAY_ENV=verbose "$BIN/vptq-pack" --version 2>&1 >version |
        sed -n "s/.*GOMP_SPINCOUNT = '\(.*\)'/\1/p"
}
unset GOMP_SPINCOUNT OMP_WAIT_POLICY
[ "$(spin A=1)" = 2000 ] || fail "the spin count is $(spin A=1)"
[ "$(spin GOMP_SPINCOUNT=77)" = 77 ] || fail "a spin count of the user's is not kept"
[ "$(spin OMP_WAIT_POLICY=active)" != 2000 ] || fail "a waiting policy of the user's is not kept"
[ -n "$(spin -i)" ] || fail "the tool does not run in an empty environment"
