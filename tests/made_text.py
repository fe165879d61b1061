"""Text for end-to-end checks: made, so that no test needs a download, with enough order in it that a model can learn some."""
import random
import subprocess


def text_and_shards(berth, folder, seq_len=32, predictions=5, documents=60, vocabulary=300, arguments=(), shard_arguments=()):
    """FOLDER/text.txt, FOLDER/vocab.txt and FOLDER/shards/{train,eval}."""
    words = random.Random(7)
    lexicon = ["".join(words.choice("abdegiklmnoprstu") for _ in range(words.randint(2, 7))) for _ in range(300)]
    with open(f"{folder}/text.txt", "w") as text:
        for _ in range(documents):
            for _ in range(12):
                first = words.randrange(300)  # neighbours in the lexicon are neighbours in sentences
                line = [lexicon[(first + i * words.choice((1, 1, 2))) % 300] for i in range(words.randint(4, 14))]
                text.write(" ".join(line).capitalize() + ".\n")
            text.write("\n")
    for command in (["vocab", "--input", f"{folder}/text.txt", "--size", str(vocabulary), "--output", f"{folder}/vocab.txt", *arguments],
                    ["shard", "--input", f"{folder}/text.txt", "--vocab", f"{folder}/vocab.txt", "--output", f"{folder}/shards",
                     "--seq-len", str(seq_len), "--max-predictions", str(predictions), "--held-out", "0.2", "--seed", "1", *shard_arguments]):
        subprocess.run([berth, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
