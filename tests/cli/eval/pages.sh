# Pages in a browser: nothing wider than the window, no label cut off or overlapping.  Takes seconds
# per page, so only on demand.
[ -n "${VPTQ_BROWSER:-}" ] || skip "VPTQ_BROWSER=1 draws pages in Chromium"
command -v chromium >/dev/null || skip "needs chromium"
records=$(data golden/serving/records.jsonl)
"$BIN/vptq-eval" compare "$records" --format html -o compare.html
"$BIN/vptq-eval" compare "$SRC/tests/fuzz/corpus/records/extreme" --format html -o extreme.html
"$BIN/vptq-eval" error -m "$(data golden/vptq_model_stories260K)" --base "$(data models/stories260K-hf)" -q \
    --format html -o error.html
"$SRC/scripts/screenshots.sh" --check compare.html extreme.html error.html >out.txt
[ "$(grep -c ': good at ' out.txt)" -eq 9 ] || fail "$(cat out.txt)"
# defects are found
sed 's/<main>/<main><p style="width:700px">wide<\/p>/; s/<text x="2.0" y="15.0"/<text x="-20" y="15.0"/' error.html >wrong.html
expect_exit 1 "$SRC/scripts/screenshots.sh" --check wrong.html >out.txt 2>err.txt
expect_line err.txt '^is [0-9]* pixels wide$'
expect_line err.txt "^cuts off 'q_proj'$"
