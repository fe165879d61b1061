#!/bin/sh
# Runs cmocka test programs and counts. run_tests.sh PROGRAM...; a line a program, all output of one that fails, and last
# "N passed, N failed, N skipped". COUNTS=FILE: also adds a line "passed failed skipped" to FILE.
set -u
passed=0 failed=0 skipped=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
for program; do
    CMOCKA_MESSAGE_OUTPUT=TAP "$program" >"$output" 2>&1 </dev/null
    code=$?
    ok=$(grep -c '^ok [0-9]* - ' "$output")
    bad=$(grep -c '^not ok [0-9]* - ' "$output")
    skip=$(grep -c '^not ok [0-9]* # SKIP\|^ok [0-9]* # SKIP' "$output")
    # a program that ends early, or whose group set-up fails, has a failure that no test line shows
    [ $code -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ $((ok + bad + skip)) -gt 0 ] || bad=1
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$bad" -gt 0 ]; then
        echo "FAILED  $program (exit $code)"
        sed 's/^/    /' "$output"
    else
        echo "ok      $program: $ok passed${skip:+, $skip skipped}" | sed 's/, 0 skipped//'
        grep '# SKIP\|[Ss]kipped:' "$output" | sed 's/^/    /'
    fi
done
[ -z "${COUNTS:-}" ] || echo "$passed $failed $skipped" >>"$COUNTS"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
