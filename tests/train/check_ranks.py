#!/usr/bin/env python3
"""Several processes, started by mpirun, train what one process trains.

Usage: check_ranks.py [path of berth [path of berth-emu]]. With the second, instead: two processes with device.type=cuda on the
emulator against one on the processor. Losses are equal but for the order of sums (fp32: the limit is some ten times what was seen,
a hundredth of what one wrong mask or gradient makes of them); a process that has no sequences changes no bit. Runs are stopped,
killed and resumed, with as many processes bit for bit. Whatever goes wrong on one process ends all, with one line and its exit code."""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from made_text import text_and_shards

BERTH = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/berth")
EMULATED = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
TIMES = {"time", "elapsed", "sequences_per_s", "tokens_per_s", "padded_tokens_per_s", "mfu", "waited_share", "eval_sequences_per_s"}
LIMIT = 5e-7  # relative, of a loss; seen: 3e-8
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def launched(ranks, command):
    """COMMAND on so many processes; on one, without a launcher."""
    return command if ranks == 1 else ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]


def run(ranks, *arguments, program=BERTH, code=0):
    command = launched(ranks, [program, *arguments])
    process = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    if code is not None and process.returncode != code:
        sys.exit(f"FAILED: {' '.join(command)}: exit {process.returncode}, expected {code}\n{process.stdout}{process.stderr}")
    return process


def training(data, folder, *more):
    return ["train", f"{data}/config.ini", f"checkpoint.dir={folder}", *more]


def lines_of(folder):
    with open(f"{folder}/metrics.jsonl") as file:
        return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in file]


def losses_of(folder):
    return [line[key] for line in lines_of(folder) for key in ("loss", "eval_loss", "grad_norm") if key in line]


def close(folder, other, what):
    ours, theirs = losses_of(folder), losses_of(other)
    assert len(ours) == len(theirs) > 0, f"{what}: {len(ours)} and {len(theirs)} values"
    worst = max(abs(a - b) / abs(a) for a, b in zip(ours, theirs))
    print(f"{what}: largest relative difference of losses and norms {worst:.2g} (limit {LIMIT:.2g})")
    assert worst <= LIMIT, what
    for key in ("step", "epoch", "sequences", "tokens", "masked_tokens", "eval_sequences", "eval_masked_tokens"):
        assert [line.get(key) for line in lines_of(folder)] == [line.get(key) for line in lines_of(other)], f"{what}: {key}"


def same(folder, other, what):
    for name in ("model.safetensors", "optimizer.safetensors"):
        with open(f"{folder}/latest/{name}", "rb") as a, open(f"{other}/latest/{name}", "rb") as b:
            assert a.read() == b.read(), f"{what}: {name} differs"
    assert lines_of(folder) == lines_of(other), f"{what}: metrics.jsonl differs"
    print(f"{what}: the same bits")


def make_data(folder, program=BERTH):
    text_and_shards(program, folder, documents=120, shard_arguments=("--rows-per-shard", "50", "--compression", "0"))
    with open(f"{folder}/config.ini", "w") as config:
        config.write(f"""[model]
vocab = {folder}/vocab.txt
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 32
[data]
train = {folder}/shards/train
eval = {folder}/shards/eval
masking = dynamic
[train]
steps = 24
global_batch = 14
micro_batch = 4
eval_every = 8
[optim]
lr = 1e-3
warmup = 0.1
[checkpoint]
every = 6
[device]
peak_tflops = 1
""")


def threads_of(output):
    return int(re.search(r"^device  cpu: (\d+) thread", output, re.M).group(1))


def equal_losses(data, folder):
    cores = threads_of(run(1, *training(data, f"{folder}/1")).stderr)
    for ranks in (2, 3):
        output = run(ranks, *training(data, f"{folder}/{ranks}")).stderr
        close(f"{folder}/1", f"{folder}/{ranks}", f"{ranks} processes")
        assert threads_of(output) == max(1, cores // ranks), f"{ranks} processes on {cores} cores:\n{output}"
        for once in (f"ranks   {ranks} processes on 1 machine", "device  cpu", "run     ", "held out at step 8", "step 24/24", "done: "):
            assert output.count(once) == 1, f"{once} is said {output.count(once)} times:\n{output}"
    with open(f"{folder}/2/latest/trainer.json") as file:
        assert json.load(file)["ranks"] == 2
    tokens = ("train.batch_tokens=300", "train.steps=6", "train.eval_every=0")
    for ranks in (1, 2):
        run(ranks, *training(data, f"{folder}/tokens-{ranks}", *tokens))
    close(f"{folder}/tokens-1", f"{folder}/tokens-2", "2 processes, train.batch_tokens")
    one, two = (json.loads(run(ranks, "eval", f"{folder}/1", f"data.eval={data}/shards/eval", f"data.train={data}/shards/train", "--json").stdout)
                for ranks in (1, 2))
    assert one.keys() == two.keys() and all(one[key] == two[key] or abs(one[key] - two[key]) <= LIMIT * one[key] for key in one), (one, two)


def idle_rank(data, folder):
    """One shard of one block: rank 1 has nothing to do."""
    shard = sorted(os.listdir(f"{data}/shards/train"))[0]
    few = (f"data.train={data}/shards/train/{shard}", "train.steps=8", "train.global_batch=6", "train.eval_every=4")
    for precision in ("fp32", "fp16"):
        for ranks in (1, 2):
            output = run(ranks, *training(data, f"{folder}/few-{precision}-{ranks}", f"train.precision={precision}", *few)).stderr
            assert ("warning: data.train" in output) == (ranks == 2), output
        same(f"{folder}/few-{precision}-1", f"{folder}/few-{precision}-2", f"a process without sequences, {precision}")


def children(process):
    """The processes that mpirun started, in the order of ranks."""
    found = []
    for _ in range(1000):
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout.split()
        found = sorted(int(pid) for pid in listed)
        if len(found) == 2:
            return found
        time.sleep(0.01)
    sys.exit(f"FAILED: mpirun started {len(found)} processes")


def free_port():
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def by_tcp(data, name, program, kill, more=()):
    """Without MPI: two processes with variables that tell where rank 0 is; `kill`: rank 1, after a step. What they said, exit codes."""
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    processes = [subprocess.Popen([program, *training(data, name, *more)], stderr=subprocess.PIPE, text=True, env={**os.environ, **own, "RANK": rank})
                 for rank in ("0", "1")]
    try:
        if kill:
            while not os.path.exists(f"{name}/metrics.jsonl") or not lines_of(name):
                time.sleep(0.002)
            processes[1].kill()
        return [process.communicate(timeout=100)[1] for process in processes], [process.returncode for process in processes]
    finally:
        for process in processes:
            process.kill()


def without_mpi(data, folder):
    name = f"{folder}/tcp"
    said, codes = by_tcp(data, name, BERTH, kill=True)
    assert codes == [1, -9] and re.search(r"^berth: rank 0: the connection to rank 1 \([0-9.:a-f]+\) is lost: ", said[0], re.M), (codes, said)
    said, codes = by_tcp(data, name, BERTH, kill=False)
    assert codes == [0, 0] and said[1] == "" and said[0].count("ranks   2 processes on 1 machine, TCP") == 1, (codes, said)
    same(f"{folder}/2", name, "2 processes by TCP, one killed, resumed")


def lives(pid):
    """For longer than a moment after its launcher ended."""
    for _ in range(50):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return False
        except FileNotFoundError:
            return False
        time.sleep(0.1)
    return True


def stop(data, folder, rank, number, code):
    """A signal to one of two processes, then the same command again."""
    name = f"{folder}/stop-{rank}-{number}"
    process = subprocess.Popen(launched(2, [BERTH, *training(data, name)]), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    pids = children(process)
    while not os.path.exists(f"{name}/metrics.jsonl") or not lines_of(name):
        time.sleep(0.002)
    os.kill(pids[rank], number)
    if code == 3:  # as when a scheduler and the launcher both hand it on
        time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], number)
    try:
        message = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    if process.returncode == 0:
        sys.exit("FAILED: the run was over before the signal arrived")
    assert process.returncode == code, f"signal {number} to rank {rank}: exit {process.returncode}, expected {code}\n{message}"
    if code == 3:
        assert message.count("stopped at step ") == 1 and signal.Signals(number).name in message, message
    for pid in pids:
        assert not lives(pid), f"process {pid} lives on"
    run(2, *training(data, name))
    same(f"{folder}/2", name, f"rank {rank} gets {signal.Signals(number).name}, exit {code}, resumed")


def in_parallel(calls):
    """Most of the time mpirun waits."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(*call) for call in calls]:
            done.result()


def out_of_time(data, folder):
    limited, fewer = f"{folder}/limited", f"{folder}/fewer"
    run(2, *training(data, limited, "train.max_minutes=0.00001"), code=3)
    step = lines_of(limited)[-1]["step"]
    assert step <= 2, step
    shutil.copytree(limited, fewer, symlinks=True)
    run(2, *training(data, limited))
    same(f"{folder}/2", limited, f"stopped by train.max_minutes at step {step}, resumed")
    output = run(1, *training(data, fewer)).stderr
    assert "the run used 2 processes, now 1" in output, output
    close(f"{folder}/2", fewer, "begun by 2 processes, resumed by 1")


def saved_by_time(data, folder):
    """By rank 0's clock: both save, or none."""
    timed = f"{folder}/timed"
    run(2, *training(data, timed, "checkpoint.every=0", "checkpoint.every_minutes=0.00001", "checkpoint.keep=0"))
    same(f"{folder}/2", timed, "checkpoints by time")
    assert len([name for name in os.listdir(timed) if name.startswith("step-")]) > 5, os.listdir(timed)


def resume(data, folder):
    signals = ((0, signal.SIGUSR1, 3), (1, signal.SIGTERM, 3), (1, signal.SIGKILL, 137))
    in_parallel([(stop, data, folder, *case) for case in signals] + [(out_of_time, data, folder), (saved_by_time, data, folder)])


def refused(data, name, says, first=(), second=(), place=None, before="", code=2):
    """Arguments of the two ranks, and a folder in which the second runs; `before` stands before the first's command. One line says
    what is wrong; wrong input leaves no run folder."""
    script = (f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then cd "{place or data}" && exec "$0" "$@" {" ".join(second)}; '
              f'else cd "{data}" && exec {before} "$0" "$@" {" ".join(first)}; fi')
    command = launched(2, ["sh", "-c", script, BERTH, *training(data, name)])
    process = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    said = [line for line in process.stderr.splitlines() if line.startswith("berth: ")]  # mpirun has its own words on processes that fail
    assert process.returncode == code and len(said) == 1 and re.search(says, said[0]), f"{says}: exit {process.returncode}\n{process.stderr}"
    assert not os.path.exists(name) or "row 20" in says or "broken" in says or code == 1, f"{says}: wrong input left a run folder"


def break_rows(path, length=32):
    """A token id of row 20 that is none: when a file is opened, only its first rows are read. Ids are 4 bytes, rows begin alike."""
    with open(path, "r+b") as file:
        whole = file.read()
        row = 4 * length
        begin = next(at for at in range(0, len(whole) - 20 * row, 4) if whole[at] and all(whole[at:at + 4] == whole[at + i * row:at + i * row + 4] for i in range(20)))
        file.seek(begin + 20 * row + 4)
        file.write(b"\xff\xff\xff\x7f")


def one_voice(data, folder):
    relative = ["data.train=shards/train", "data.eval=shards/eval"]  # files of the same names in each process's own folder
    fewer, broken = f"{folder}/fewer-shards", f"{folder}/broken-shards"
    for place in (fewer, broken):
        shutil.copytree(f"{data}/shards", f"{place}/shards")
    shards = sorted(os.listdir(f"{data}/shards/train"))
    os.remove(f"{fewer}/shards/train/{shards[-1]}")
    for shard in shards:
        break_rows(f"{broken}/shards/train/{shard}")
    run(1, *training(data, f"{data}/run", "train.steps=6", "train.eval_every=0"))
    shutil.copytree(f"{data}/run", f"{broken}/run", symlinks=True)
    with open(f"{broken}/run/latest/model.safetensors", "r+b") as file:  # one weight is another one
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\x3f")
    resumed = ["checkpoint.dir=run", "train.steps=9"]
    alone = ["train.global_batch=1"]
    everywhere = [f"data.train={broken}/shards/train", "data.on_bad_shard=skip", "train.eval_every=0"]
    cases = [
        (r"^berth: .*train\.steps = '0'", ["train.steps=0"], ["train.steps=0"]),
        (r"^berth: train\.global_batch = 1 sequences, but there are 2 processes", alone, alone),
        (r"^berth: rank 1: .*unknown key 'train\.stepz'", [], ["train.stepz=3"]),
        (r"^berth: rank 1: .*none\.txt", [], ["model.vocab=none.txt"]),
        (r"^berth: rank 1: the settings: expected the same as on rank 0", [], ["train.seed=3"]),
        (r"^berth: rank 1: data\.train .*expected the same as on rank 0", relative, relative, fewer),
        (r"^berth: rank 1: shards/train/.*row 20", relative, relative, broken),
        (r"^berth: rank 1: weights, moments and steps at the start: expected the same as on rank 0", resumed, resumed, broken),
        (r"^berth: all sequences of a step lie in broken shards", everywhere, everywhere),
        (r"^berth: rank 0: .*No space left", [], [], None, "env BERTH_FAULT=20", 1),  # in the middle of the run
    ]
    in_parallel([(refused, data, f"{folder}/refused-{i}", *case) for i, case in enumerate(cases)])
    print(f"{len(cases) - 1} kinds of wrong input and a full disk, on one process or all: one line, exit 2 or 1")


def described():
    text = run(2, "config").stdout
    assert len(re.findall(r"^processes: 2 processes on 1 machine, MPI \d", text, re.M)) == 1 and text.count("[model]") == 1, text
    assert "\nprocesses: one process\n" in run(1, "config").stdout
    own = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "5000"}
    for variable, value in (("WORLD_SIZE", "abc"), ("WORLD_SIZE", "-2"), ("RANK", "1x"), ("RANK", "2"), ("MASTER_PORT", "port")):
        process = subprocess.run([BERTH, "config"], capture_output=True, text=True, env={**os.environ, **own, variable: value}, timeout=60)
        assert process.returncode == 2 and process.stderr.count("\n") == 1 and f"{variable} = {value}" in process.stderr, process
    # what a launcher started, one on each machine, may start others itself
    # what srun started, one on each machine, may start others itself; or all, without MPI
    for started in ("1", "2"):
        of_srun = {**os.environ, **own, "MASTER_PORT": str(free_port()), "SLURM_STEP_NUM_TASKS": started, "SLURM_PROCID": "0"}
        both = [subprocess.Popen([BERTH, "config"], stdout=subprocess.PIPE, text=True, env={**of_srun, "RANK": rank}) for rank in ("0", "1")]
        said = [process.communicate(timeout=60)[0] for process in both]
        assert re.search("^processes: 2 processes on 1 machine, TCP", said[0], re.M) and said[1] == "", said


def held_out(data):
    """The same sequences, whatever the number of processes."""
    said = [run(ranks, "eval", f"{data}/run", f"data.eval={data}/shards/eval", "train.eval_sequences=10", "train.micro_batch=4").stdout for ranks in (1, 2, 3)]
    assert re.search(r"sequences +12\n", said[0]) and said[0] == said[1] == said[2], said


def emulated(data, folder):
    few = ("train.steps=4", "train.global_batch=5", "train.eval_every=0", "model.hidden_act=gelu_new", "optim.name=lamb")
    run(1, *training(data, f"{folder}/cpu", "device.type=cpu", *few))
    for graphs in ("auto", "on"):
        output = run(2, *training(data, f"{folder}/{graphs}", "device.type=cuda", f"device.cuda_graphs={graphs}", *few), program=EMULATED).stderr
        assert "gradients by NCCL" in output, output
        close(f"{folder}/cpu", f"{folder}/{graphs}", f"2 processes on emulated devices, device.cuda_graphs={graphs}")
    same(f"{folder}/auto", f"{folder}/on", "two runs")
    shard = sorted(os.listdir(f"{data}/shards/train"))[0]
    few = (f"data.train={data}/shards/train/{shard}", "train.precision=fp16", "optim.loss_scale=2097152", *few)
    for ranks in (1, 2):
        run(ranks, *training(data, f"{folder}/few-{ranks}", "device.type=cuda", *few), program=EMULATED)
    same(f"{folder}/few-1", f"{folder}/few-2", "a process without sequences, fp16, emulated")


def emulated_and_killed(data, folder):
    """A device that waits for the sum with one that is gone: its process is not told by any sum of its own."""
    said, codes = by_tcp(data, f"{folder}/killed", EMULATED, True, ("device.type=cuda", "train.eval_every=0"))
    assert codes == [1, -9] and re.search(r"^berth: rank 0: (rank 1 \([0-9.:a-f]+\) has ended|the connection to rank 1 \([0-9.:a-f]+\) is lost)", said[0], re.M), (codes, said)
    print("2 processes by TCP on emulated devices, one killed: " + [line for line in said[0].splitlines() if line.startswith("berth: ")][0])


def main():
    if not shutil.which("mpirun") or "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        print("SKIPPED: no mpirun of Open MPI")
        return
    if run(2, "config", code=None).returncode == 2:
        print("SKIPPED: this build has no MPI")
        return
    with tempfile.TemporaryDirectory(prefix="berth-ranks-") as folder:
        data = f"{folder}/data"
        os.mkdir(data)
        make_data(data)
        if EMULATED:
            in_parallel([(emulated, data, folder), (emulated_and_killed, data, folder)])
        else:
            described()
            equal_losses(data, folder)
            idle_rank(data, folder)
            resume(data, folder)
            without_mpi(data, folder)
            one_voice(data, folder)
            held_out(data)
    print("check_ranks: passed")


main()
