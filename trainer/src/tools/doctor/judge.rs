//! Checks of the doctor. Each check is a function of the facts of all ranks.

use records::{bytes, counted, grouped};

use super::facts::{DataFacts, RankFacts};
use super::machine::{InterfaceFacts, NcclFacts};
use super::network::SpeedFacts;
use super::storage::OutputFacts;
use super::{Facts, Node, cores, numbers};
use crate::tools::check::{Check, Finding};

/// Number of digits of a hash in a finding.
const DIGITS: usize = 12;
/// Minimum memory of a rank.
const RANK_BYTES: u64 = 1 << 30;
/// Minimum space in `/dev/shm`, through which the ranks of a node sum.
const SHARED_BYTES: u64 = 64 << 20;
/// Minimum number of files that a process must be able to open.
const OPEN_FILES: u64 = 1024;
/// Minimum bandwidth between nodes, bytes/s: slightly more than Gigabit Ethernet.
const SLOW_BYTES_PER_S: f64 = 0.15e9;
/// Size from which the bandwidth, not the latency, determines the time.
const LARGE_BYTES: u64 = 1 << 20;
/// Clock offset from which files have times in the future, seconds.
const SKEWED_S: f64 = 1.0;
/// Clock offset from which certificates and Slurm messages are rejected, seconds.
const BROKEN_S: f64 = 60.0;
/// Free bytes for checkpoints and log, below which the check warns.
const LITTLE_BYTES: u64 = 2 << 30;
/// Free bytes for checkpoints and log, below which the check fails.
const NO_BYTES: u64 = 200 << 20;

type Judge = fn(&Facts<'_>) -> Finding;

pub(super) const CHECKS: [Check<Judge>; 19] = [
    Check::new("program", "every rank runs the same build", program),
    Check::new(
        "MPI",
        "every rank has the same MPI, with support for threads",
        library,
    ),
    Check::new(
        "world",
        "the world is the one that the launcher started",
        world,
    ),
    Check::new(
        "cores",
        "every compute thread has its own core, and no core idles",
        cores::cores,
    ),
    Check::new(
        "processor",
        "every rank has the same vector instructions",
        processor,
    ),
    Check::new(
        "device",
        "every rank computes on the device it should",
        device,
    ),
    Check::new(
        "gradients' way",
        "the path of gradients between GPUs is the same on all nodes",
        path_of_gradients,
    ),
    Check::new("memory", "every rank has enough memory", memory),
    Check::new(
        "shared memory",
        "the ranks of a node have room to sum in",
        shared_memory,
    ),
    Check::new("open files", "every rank may open enough files", open_files),
    Check::new("energy", "the energy of the CPUs can be read", energy),
    Check::new("sums", "known sums are exact on all ranks", sums),
    Check::new("bandwidth", "sums between nodes are fast", bandwidth),
    Check::new("clocks", "the clocks of the nodes agree", clocks),
    Check::new("interfaces", "the network interfaces are known", interfaces),
    Check::new("data set", "every rank reads the same images", data_set),
    Check::new("output", "root can write its files and has room", output),
    Check::new(
        "shared output",
        "every node has root's directory",
        shared_output,
    ),
    Check::new(
        "file locks",
        "two jobs on one directory are detected",
        locks,
    ),
];

impl<'a> Facts<'a> {
    /// Returns the ranks with a property.
    fn having(&self, has: impl Fn(&RankFacts) -> bool) -> Vec<&'a RankFacts> {
        self.ranks.iter().filter(|rank| has(rank)).collect()
    }

    /// Returns the ranks whose value differs from root's.
    fn unlike_root<T: PartialEq>(&self, of: impl Fn(&'a RankFacts) -> T) -> Vec<&'a RankFacts> {
        let root = of(self.root);
        self.ranks.iter().filter(|rank| of(rank) != root).collect()
    }

    /// Returns `, the same on 4 ranks`. Returns an empty text for one rank.
    fn on_all(&self) -> String {
        match self.ranks.len() {
            1 => String::new(),
            number => format!(", the same on {number} ranks"),
        }
    }
}

/// Returns `rank 3 on n2` or `ranks 0-3`.
fn named(ranks: &[&RankFacts]) -> String {
    match ranks {
        [one] => format!("rank {} on {}", one.place.rank, one.place.node),
        many => format!("ranks {}", numbers(many)),
    }
}

fn program(facts: &Facts<'_>) -> Finding {
    let words = |rank: &RankFacts| {
        let program = &rank.program;
        let commit: String = program.commit.chars().take(DIGITS).collect();
        let hash = program.executable.as_deref().unwrap_or("unreadable");
        let hash: String = hash.chars().take(DIGITS).collect();
        format!("{} (commit {commit}), sha256 {hash}", program.version)
    };
    let root = words(facts.root);
    let differing = facts.unlike_root(|rank| {
        let program = &rank.program;
        (
            &program.version,
            &program.commit,
            program.executable.as_ref().ok(),
        )
    });
    if let Some(first) = differing.first() {
        return Finding::fail(
            format!("{}: {}; root: {root}", named(&differing), words(first)),
            "install one build on every node, on a shared file system or by copying the file",
        );
    }
    match &facts.root.program.executable {
        Ok(_) => Finding::ok(format!("{root}{}", facts.on_all())),
        Err(error) => Finding::warn(
            format!("{root}: {error}"),
            "compare the program file on the nodes by hand; /proc is not readable here",
        ),
    }
}

fn library(facts: &Facts<'_>) -> Finding {
    let root = &facts.root.program;
    let differing = facts.unlike_root(|rank| &rank.program.library);
    if let Some(first) = differing.first() {
        return Finding::fail(
            format!(
                "{}: {}; root: {}",
                named(&differing),
                first.program.library,
                root.library
            ),
            "link and run with one MPI on all nodes: load the same module, or set the same LD_LIBRARY_PATH",
        );
    }
    if !root.has_mpi {
        return match &facts.root.place.launcher {
            Some((_, tasks)) if *tasks > 1 => Finding::fail(
                format!("not built in, and the launcher started {tasks} tasks"),
                "rebuild with the default feature mpi, or start one task",
            ),
            _ => Finding::ok("not built in; one rank needs none"),
        };
    }
    let without = facts.having(|rank| !rank.program.supports_threads);
    if facts.ranks.len() > 1 && !without.is_empty() {
        return Finding::warn(
            format!(
                "{}, without MPI_THREAD_MULTIPLE on {}: gradients wait for the backward pass, and no watchdog runs",
                root.library,
                named(&without)
            ),
            "use an MPI with support for threads (MPICH: --enable-threads=multiple; Open MPI 3 and later have it)",
        );
    }
    // The package and the revision follow the first comma.
    let library = root.library.split(',').next().unwrap_or_default();
    match facts.ranks.len() {
        1 => Finding::ok(format!("{library}; one rank does not need it")),
        _ => Finding::ok(format!(
            "{library}, one thread may communicate while others compute"
        )),
    }
}

fn world(facts: &Facts<'_>) -> Finding {
    let complaining = facts.having(|rank| rank.place.complaint.is_some());
    let complaint = complaining
        .first()
        .and_then(|rank| rank.place.complaint.as_ref());
    let launcher = facts.root.place.launcher.as_ref();
    if let Some((found, remedy)) = complaint {
        let is_separate = facts.ranks.len() == 1 && launcher.is_some_and(|(_, tasks)| *tasks > 1);
        let consequence = match is_separate {
            true => ": every task would train alone and overwrite the files of the others",
            false => "",
        };
        return Finding::fail(
            format!("{}: {found}{consequence}", named(&complaining)),
            remedy,
        );
    }
    match launcher {
        Some((name, tasks)) => Finding::ok(format!(
            "{} of {name}, as many ranks, each in its place",
            counted(*tasks, "task")
        )),
        None => Finding::ok(format!(
            "{}, no launcher",
            counted(facts.ranks.len(), "rank")
        )),
    }
}

fn processor(facts: &Facts<'_>) -> Finding {
    let set = |rank: &'_ RankFacts| match &rank.compute {
        Ok(compute) => compute.instruction_set.clone(),
        Err(_) => "none".to_owned(),
    };
    let model = &facts.root.processors.model;
    let root = set(facts.root);
    let differing = facts.unlike_root(set);
    if let Some(first) = differing.first() {
        return Finding::warn(
            format!(
                "{}: kernels for {} ({}); root: {root} ({model}); the slowest rank determines the speed",
                named(&differing),
                set(first),
                first.processors.model
            ),
            "ask for nodes of one kind (Slurm: --constraint); the results stay correct",
        );
    }
    if root == "Portable" {
        return Finding::warn(
            format!("{model}: portable kernels, without AVX2 and FMA"),
            "use a CPU with AVX2, or remove --cpu portable; portable kernels take several times as long",
        );
    }
    Finding::ok(format!("{model}, kernels for {root}{}", facts.on_all()))
}

fn device(facts: &Facts<'_>) -> Finding {
    let failed = facts.having(|rank| rank.compute.is_err());
    if let [first, ..] = failed[..]
        && let Err(error) = &first.compute
    {
        let remedy = match first.gpus.has_driver {
            true => "rebuild with --features cuda",
            false => "choose another --device",
        };
        return Finding::fail(format!("{}: {error}", named(&failed)), remedy);
    }
    let device = facts
        .root
        .compute
        .as_ref()
        .map_or("none", |compute| &compute.device);
    let uses_gpu = |rank: &RankFacts| rank.compute.as_ref().is_ok_and(|compute| compute.is_gpu);
    for node in &facts.nodes {
        let gpus = &node.ranks[0].gpus;
        let num_gpus = gpus.num_gpus;
        let computes_on_gpu = node.ranks.iter().any(|rank| uses_gpu(rank));
        if computes_on_gpu && num_gpus > 0 && node.ranks.len() > num_gpus {
            return Finding::warn(
                format!(
                    "{}: {} ranks on {}",
                    node.name,
                    node.ranks.len(),
                    counted(num_gpus, "GPU")
                ),
                format!(
                    "start {} per node: mpirun --map-by ppr:{num_gpus}:node, srun --ntasks-per-node={num_gpus}",
                    counted(num_gpus, "rank")
                ),
            );
        }
        if gpus.has_driver && !computes_on_gpu {
            return Finding::warn(
                format!(
                    "{device}; {} has an NVIDIA driver with {}, idle",
                    node.name,
                    counted(num_gpus, "GPU")
                ),
                "build with --features cuda and remove --device, or give --device cuda",
            );
        }
    }
    match facts.ranks.iter().any(uses_gpu) {
        true => Finding::ok(format!("{device}, a GPU for every rank")),
        false => Finding::ok(format!("no GPU found, {device} on the CPU")),
    }
}

fn path_of_gradients(facts: &Facts<'_>) -> Finding {
    if facts.ranks.len() < 2 {
        return Finding::ok("one rank, none");
    }
    let nccl = |node: &Node<'_>| node.ranks.iter().find_map(|rank| rank.nccl.clone());
    let nodes = facts.nodes.iter();
    let with_gpus: Vec<(&str, NcclFacts)> = nodes
        .filter_map(|node| Some((node.name, nccl(node)?)))
        .collect();
    let Some((first_name, first)) = with_gpus.first() else {
        return Finding::ok("host memory over MPI");
    };
    let staged = "staged through host memory over MPI";
    if let Some((name, NcclFacts { files, .. })) =
        with_gpus.iter().find(|(_, one)| one.version.is_none())
    {
        let files = match files.is_empty() {
            true => "no libnccl.so.2 in the loader's directories".to_owned(),
            false => format!("there is {}", files.join(", ")),
        };
        return Finding::warn(
            format!("{staged}, as NCCL does not load on {name} ({files})"),
            "install NCCL 2.14 or newer (package libnccl2) on every node, or add its folder to LD_LIBRARY_PATH",
        );
    }
    let version = |one: &NcclFacts| one.version.clone().unwrap_or_default();
    let mut others = with_gpus.iter();
    match others.find(|(_, one)| one.version != first.version) {
        Some((name, other)) => Finding::warn(
            format!(
                "{staged}, as NCCL is {} on {first_name} and {} on {name}",
                version(first),
                version(other)
            ),
            "load the same NCCL on every node",
        ),
        None => Finding::ok(format!("from GPU to GPU by NCCL {}", version(first))),
    }
}

fn memory(facts: &Facts<'_>) -> Finding {
    let left = |node: &Node<'_>| {
        let memory = &node.ranks[0].memory;
        let limits = [memory.available_bytes, memory.group_left_bytes];
        Some(limits.into_iter().flatten().min()? / node.ranks.len() as u64)
    };
    let machines = facts
        .machines
        .iter()
        .filter_map(|node| Some((left(node)?, node)));
    let Some((least, node)) = machines.min_by_key(|(bytes, _)| *bytes) else {
        return Finding::warn(
            "unknown",
            "run `free` on the nodes; /proc is not readable here",
        );
    };
    let memory = &node.ranks[0].memory;
    let is_limited =
        memory.group_left_bytes.is_some() && memory.group_left_bytes < memory.available_bytes;
    let limited = if is_limited {
        ", by the job's own limit"
    } else {
        ""
    };
    let found = format!(
        "{} free for each rank on {}{limited}",
        bytes(least),
        node.name
    );
    if least < RANK_BYTES {
        return Finding::warn(
            format!("{found}, expected {}", bytes(RANK_BYTES)),
            "start fewer ranks per node, or ask for more memory (Slurm: --mem-per-cpu); a rank without memory is killed",
        );
    }
    Finding::ok(found)
}

fn shared_memory(facts: &Facts<'_>) -> Finding {
    let shared = facts.nodes.iter().filter(|node| node.ranks.len() > 1);
    let free = shared.filter_map(|node| Some((node.ranks[0].memory.shared_free_bytes?, node.name)));
    let Some((free, name)) = free.min() else {
        return Finding::ok("one rank per node needs none");
    };
    let found = format!("{} free in /dev/shm on {name}", bytes(free));
    if free < SHARED_BYTES {
        return Finding::warn(
            format!("{found}, expected {}", bytes(SHARED_BYTES)),
            "give the container more (docker run --shm-size=1g), or remove old files in /dev/shm; not --ipc=host, where containers share files of one name",
        );
    }
    Finding::ok(found)
}

fn open_files(facts: &Facts<'_>) -> Finding {
    let limits = facts
        .ranks
        .iter()
        .filter_map(|rank| Some((rank.memory.open_files?, rank)));
    match limits.min_by_key(|(files, _)| *files) {
        None => Finding::ok("no limit known"),
        Some((files, rank)) if files < OPEN_FILES => Finding::warn(
            format!(
                "at most {} on {}, expected {}",
                grouped(files),
                named(&[rank]),
                grouped(OPEN_FILES)
            ),
            "raise the limit: ulimit -n 4096; every connection to a rank of another node takes one",
        ),
        Some((u64::MAX, _)) => Finding::ok("no limit"),
        Some((files, _)) => Finding::ok(format!("up to {} per rank", grouped(files))),
    }
}

fn energy(facts: &Facts<'_>) -> Finding {
    let unread =
        |node: &Node<'_>| Some((node.name.to_owned(), node.ranks[0].energy.clone().err()?));
    match facts.machines.iter().find_map(unread) {
        Some((name, error)) => Finding::ok(format!(
            "no joules in a run's records, as {name} has {error}"
        )),
        None => Finding::ok("joules per image by RAPL"),
    }
}

fn sums(facts: &Facts<'_>) -> Finding {
    if facts.ranks.len() == 1 {
        return Finding::ok("one rank, nothing to reduce");
    }
    let mut all = facts.ranks.iter().flat_map(|rank| &rank.sums);
    if let Some((sum, wrong)) = all.find_map(|sum| Some((sum, sum.wrong.as_ref()?))) {
        let ranks = facts.having(|rank| rank.sums.iter().any(|sum| sum.wrong.is_some()));
        return Finding::fail(
            format!("{}: {}: {wrong}", named(&ranks), sum.way),
            "do not train here: try --reduction mpi or ring, another network (UCX_TLS, --mca btl), then the memory of the node",
        );
    }
    let ways: Vec<&str> = facts.root.sums.iter().map(|sum| sum.way.as_str()).collect();
    Finding::ok(format!(
        "exact on all {} ranks: {}",
        facts.ranks.len(),
        ways.join(", ")
    ))
}

fn bandwidth(facts: &Facts<'_>) -> Finding {
    let num_ranks = facts.ranks.len();
    if num_ranks == 1 {
        return Finding::ok("one rank, nothing to reduce");
    }
    // All ranks wait for the slowest rank.
    let slowest = |way: usize, size: usize| {
        let of_rank = |rank: &RankFacts| rank.sums.get(way)?.speeds.get(size).copied();
        let speeds = facts.ranks.iter().filter_map(of_rank);
        speeds.max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    };
    let shown = |speed: &SpeedFacts| {
        let text = format!("{} in {}", bytes(speed.bytes), time(speed.seconds));
        match speed.bytes {
            ..LARGE_BYTES => text,
            _ => format!(
                "{text} ({:.2} GB/s)",
                speed.bus_bytes_per_s(num_ranks) / 1e9
            ),
        }
    };
    let mut texts = Vec::new();
    let mut best = 0.0f64;
    for (way, sum) in facts.root.sums.iter().enumerate() {
        let speeds = (0..sum.speeds.len()).filter_map(|size| slowest(way, size));
        let speeds: Vec<SpeedFacts> = speeds.collect();
        let Some(largest) = speeds.last() else {
            continue;
        };
        best = best.max(largest.bus_bytes_per_s(num_ranks));
        let speeds: Vec<String> = speeds.iter().map(shown).collect();
        texts.push(format!("{}: {}", sum.way, speeds.join(", ")));
    }
    let found = texts.join("; ");
    if facts.nodes.len() > 1 && best < SLOW_BYTES_PER_S {
        return Finding::warn(
            format!(
                "{found}: slow between nodes, expected {:.2} GB/s",
                SLOW_BYTES_PER_S / 1e9
            ),
            "choose the fast network: mpirun --mca btl_tcp_if_include INTERFACE (see interfaces), or UCX with UCX_NET_DEVICES; without one, --compress bf16 or --sync local-sgd send less",
        );
    }
    Finding::ok(found)
}

fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

fn clocks(facts: &Facts<'_>) -> Finding {
    if facts.ranks.len() == 1 {
        return Finding::ok("one rank, one clock");
    }
    let skew = |rank: &RankFacts| rank.clock.offset_s.abs();
    let worst = facts
        .ranks
        .iter()
        .max_by(|a, b| skew(a).total_cmp(&skew(b)));
    let worst = worst.unwrap_or(facts.root);
    let way = if worst.clock.offset_s > 0.0 {
        "behind"
    } else {
        "ahead of"
    };
    let offset = time(skew(worst));
    let uncertainty = time(worst.clock.uncertainty_s);
    let found = format!(
        "{} is {offset} {way} root, give or take {uncertainty}",
        named(&[worst])
    );
    let remedy = "synchronise the clocks by NTP; chronyc tracking shows their state";
    // The part of the offset that the message times cannot explain.
    match skew(worst) - worst.clock.uncertainty_s {
        certain if certain > BROKEN_S => Finding::fail(found, remedy),
        certain if certain > SKEWED_S => Finding::warn(found, remedy),
        _ => Finding::ok(format!(
            "within {offset} of root's, give or take {uncertainty}"
        )),
    }
}

fn interfaces(facts: &Facts<'_>) -> Finding {
    let of = |interface: &InterfaceFacts| match &interface.speed {
        Some(speed) => format!("{} ({speed})", interface.name),
        None => interface.name.clone(),
    };
    let mut kinds: Vec<(String, Vec<&str>)> = Vec::new();
    for node in &facts.nodes {
        let interfaces: Vec<String> = node.ranks[0].interfaces.iter().map(of).collect();
        let text = match interfaces.is_empty() {
            true => "none is up".to_owned(),
            false => interfaces.join(", "),
        };
        match kinds.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(node.name),
            None => kinds.push((text, vec![node.name])),
        }
    }
    if let [(text, _)] = &kinds[..] {
        return Finding::ok(text);
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(text, names)| format!("{}: {text}", names.join(", ")))
        .collect();
    Finding::ok(kinds.join("; "))
}

fn data_set(facts: &Facts<'_>) -> Finding {
    let failed = facts.having(|rank| rank.data.is_err());
    let root = match (&facts.root.data, failed.first().map(|rank| &rank.data)) {
        (Ok(root), None) => root,
        (Err(error), _) | (_, Some(Err(error))) => {
            let found = format!("{}: {}", named(&failed), error.text);
            const ABSENT: &str = "put the data at the same path on every node, name it with --data-dir, or let train --download fetch it";
            return Finding {
                // Other errors have their own remedy.
                remedy: error.is_missing.then(|| ABSENT.to_owned()),
                ..Finding::fail(found, "")
            };
        }
        (Ok(root), Some(Ok(_))) => root,
    };
    let words = |data: &DataFacts| {
        let split = |split: &super::facts::SplitFacts| {
            let checksum: String = split.checksum.chars().take(DIGITS).collect();
            let images = grouped(split.num_images as u64);
            format!(", {images} {} images (sha256 {checksum})", split.name)
        };
        format!(
            "{}{}",
            data.name,
            data.splits.iter().map(split).collect::<String>()
        )
    };
    let differing = facts.unlike_root(|rank| rank.data.as_ref().ok().map(|data| &data.splits));
    if let [first, ..] = differing[..]
        && let Ok(other) = &first.data
    {
        return Finding::fail(
            format!(
                "{}: {}; root: {}",
                named(&differing),
                words(other),
                words(root)
            ),
            "copy root's data to the other nodes: ranks with different images train another model",
        );
    }
    let notes: String = root.notes.iter().map(|note| format!("; {note}")).collect();
    Finding::ok(format!("{}{}{notes}", words(root), facts.on_all()))
}

fn output(facts: &Facts<'_>) -> Finding {
    const ELSEWHERE: &str = "choose another --output-dir";
    let Some(output) = &facts.root.output else {
        return Finding::ok("not examined");
    };
    let directory = &output.directory;
    let speed = match &output.write_bytes_per_s {
        Ok(speed) => speed,
        Err(error) => {
            return Finding::fail(
                format!("{directory}: cannot be written: {error}"),
                "choose an --output-dir that root's user may write to",
            );
        }
    };
    let free = match &output.free_bytes {
        Ok(free) => *free,
        Err(error) => {
            return Finding::warn(
                format!("{directory}: free space unknown: {error}"),
                ELSEWHERE,
            );
        }
    };
    let found = format!(
        "{directory}: {} free, writes {:.0} MB/s in 1 MiB files",
        bytes(free),
        speed / 1e6
    );
    if free >= LITTLE_BYTES {
        return Finding::ok(found);
    }
    let found = format!("{found}, expected {}", bytes(LITTLE_BYTES));
    let remedy = format!(
        "{ELSEWHERE}, or make room on the file system of {}",
        output.examined
    );
    match free {
        ..NO_BYTES => Finding::fail(found, remedy),
        _ => Finding::warn(found, remedy),
    }
}

fn shared_output(facts: &Facts<'_>) -> Finding {
    let blind = facts.having(|rank| rank.sees_output == Some(false));
    if !blind.is_empty() {
        return Finding::warn(
            format!("root's directory is not seen by {}", named(&blind)),
            "only root writes, so a run works; to resume with another node as root, use a file system that all nodes share",
        );
    }
    let was_looked_for = facts.ranks.iter().any(|rank| rank.sees_output.is_some());
    match (facts.nodes.len(), was_looked_for) {
        (1, _) => Finding::ok("one node"),
        (number, true) => Finding::ok(format!("seen by all {number} nodes")),
        (_, false) => Finding::ok("not tested, as it cannot be written"),
    }
}

fn locks(facts: &Facts<'_>) -> Finding {
    match &facts.root.output {
        Some(OutputFacts {
            write_bytes_per_s: Err(_),
            ..
        })
        | None => Finding::ok("not tested"),
        Some(OutputFacts {
            locks: Err(error), ..
        }) => Finding::warn(
            format!(
                "do not work in the output directory ({error}): two jobs on it are not detected"
            ),
            "give every job its own --output-dir; Lustre: mount with -o flock, NFS: version 4",
        ),
        Some(_) => Finding::ok("a second owner is refused"),
    }
}
