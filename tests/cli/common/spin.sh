# Idle OpenMP threads sleep early: the tool sets the spin count in its own process before the
# runtime reads it, keeps a value set by the user, and leaves the environment unchanged.
! nm -D "$BIN/vptq-eval" | grep -q ' U execv' || fail "the tool imports execv"
spin()
{
    env "$@" OMP_DISPLAY_ENV=verbose "$BIN/vptq-pack" --version 2>&1 >version |
        sed -n "s/.*GOMP_SPINCOUNT = '\(.*\)'/\1/p"
}
unset GOMP_SPINCOUNT OMP_WAIT_POLICY
[ "$(spin A=1)" = 2000 ] || fail "the spin count is $(spin A=1)"
[ "$(spin GOMP_SPINCOUNT=77)" = 77 ] || fail "the user's spin count is not kept"
[ "$(spin OMP_WAIT_POLICY=active)" != 2000 ] || fail "the user's wait policy is not kept"
[ -n "$(spin -i)" ] || fail "the tool does not run in an empty environment"
