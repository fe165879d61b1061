#!/bin/sh
# From nothing to a small BERT that transformers loads: installs packages, builds, and pretrains a BERT-mini on the King James
# Bible. Everything goes to build/quickstart; what is there already is not made again. About ten minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh
out=build/quickstart
say() { printf '\n== %s\n' "$*"; }

say "packages"
need_packages $BUILD_PACKAGES bible-kjv
say "build"
cuda=
[ -e /dev/nvidiactl ] || cuda=CUDA=0 # no GPU: nvcc, where it is, need not work for minutes
make -j2 $cuda >/dev/null
mkdir -p $out

if [ ! -s $out/kjv.txt ]; then
    say "text: the King James Bible, a chapter a document -> $out/kjv.txt"
    # "Ge1:1 In the beginning …": the reference goes, an empty line comes between chapters
    bible -f gen1:1-rev22:21 </dev/null |
        awk '{ split($1, at, ":"); if (NR > 1 && at[1] != chapter) print ""; chapter = at[1]; sub(/^[^ ]+ /, ""); print }' \
            >$out/kjv.tmp
    [ "$(wc -l <$out/kjv.tmp)" -gt 30000 ] || { echo "bible -f printed only $(wc -l <$out/kjv.tmp) lines" >&2; exit 1; }
    mv $out/kjv.tmp $out/kjv.txt
fi
if [ ! -s $out/vocab.txt ]; then
    say "vocabulary -> $out/vocab.txt"
    build/berth vocab --input $out/kjv.txt --size 8000 --output $out/vocab.txt
fi
if [ ! -d $out/shards ]; then
    say "shards -> $out/shards"
    rm -rf $out/shards.tmp
    build/berth shard --input $out/kjv.txt --vocab $out/vocab.txt --output $out/shards.tmp --seq-len 64 \
        --max-predictions 10 --held-out 0.05 --seed 1
    mv $out/shards.tmp $out/shards
fi
say "pretraining -> $out/run"
code=0
build/berth train configs/quickstart.ini model.vocab=$out/vocab.txt data.train=$out/shards/train data.eval=$out/shards/eval \
    checkpoint.dir=$out/run train.max_minutes=7.5 || code=$?
[ $code -eq 0 ] || [ $code -eq 3 ] || exit $code # 3: the time was up; what was learned is saved

say "held-out text"
build/berth eval $out/run data.eval=$out/shards/eval data.train=$out/shards/train
cat <<END

mlm_loss is what the model needs to guess a masked word, unigram_loss what a predictor needs that knows only how often
each word occurs (nats; lower is better). The model is a HuggingFace folder:

    $out/run/latest

    from transformers import pipeline
    fill = pipeline("fill-mask", model="$(pwd)/$out/run/latest")
    print(fill("And God said, Let there be [MASK]."))

Next: your own text, see README.md.
END
