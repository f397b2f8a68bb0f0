#!/usr/bin/env bash
# Runs the benchmarks of the hot path as they are here and as they were at the merge
# base, in turn, and compares the two with benchstat.
#
#   BASE    what to compare with    (default: the merge base with origin/main or main;
#                                    where that is HEAD itself, the commit before it)
#   PKG     the packages            (default: the rules, the log, the actor, the store, the calls, the client)
#   BENCH   which benchmarks, a regular expression (default: all)
#   COUNT   how often each is run   (default: 6)
set -euo pipefail
cd "$(dirname "$0")/.."

pkg=${PKG:-./internal/admission ./internal/raftfsm ./internal/actor ./internal/store ./internal/rpc ./client}
bench=${BENCH:-.}
count=${COUNT:-6}
base=${BASE:-}
if [[ -z "$base" ]]; then
	base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)
	if [[ "$base" == "$(git rev-parse HEAD)" ]] && git diff --quiet HEAD; then
		base=$(git rev-parse HEAD^)
	fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"
git archive "$base" | tar -x -C "$work/source"

# build SOURCE TO: the test programs of all packages that have one there.
build() {
	mkdir -p "$2"
	for package in $pkg; do
		[[ -d "$1/$package" ]] || continue
		(cd "$1" && go test -vet=off -c -o "$2/$(tr -c 'a-zA-Z0-9\n' _ <<<"${package#./}").test" "$package")
	done
}
build "$work/source" "$work/before"
build "$PWD" "$work/after"

# measure SOURCE WHICH: each program in its package's directory, where its testdata is.
measure() {
	for package in $pkg; do
		local program
		program="$work/$2/$(tr -c 'a-zA-Z0-9\n' _ <<<"${package#./}").test"
		[[ -x "$program" ]] || continue
		echo "pkg: ${package#./}" >>"$work/$2.txt"
		(cd "$1/$package" && "$program" -test.run '^$' -test.bench "$bench" -test.benchmem -test.short -test.benchtime 200ms) |
			grep -E '^(goos|goarch|cpu|Benchmark)' >>"$work/$2.txt" || true
	done
}
for ((i = 1; i <= count; i++)); do
	echo "run $i of $count" >&2
	measure "$work/source" before
	measure "$PWD" after
done
echo "before: $(git log -1 --format='%h %s' "$base")"
go tool -modfile=tools/go.mod benchstat "before=$work/before.txt" "after=$work/after.txt"
