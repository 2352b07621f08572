//! Tests of multiplying matrices out.

use std::collections::BTreeSet;

use super::*;

/// Returns the file of a study with this text after the required keys, and its cells.
pub(crate) fn study(rest: &str) -> Outcome<(StudyFile, Vec<Cell>)> {
    let head = "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n";
    let file = StudyFile::read("s.toml", &format!("{head}{rest}"), &Table::new())?;
    let cells = cells(&file)?;
    Ok((file, cells))
}

/// Returns the cells of a matrix with these lines.
fn matrix(lines: &str) -> Outcome<Vec<Cell>> {
    Ok(study(&format!("[[matrix]]\n{lines}\n"))?.1)
}

fn ids(lines: &str) -> Vec<String> {
    let cells = matrix(&format!("batch_size_per_rank = 8\n{lines}")).unwrap();
    cells.into_iter().map(|cell| cell.id).collect()
}

#[test]
fn a_matrix_has_every_combination_once() {
    let cells = matrix(
        "scaling = \"weak\"\nmodel = [\"resnet20\", \"resnet44\"]\ndtype = [\"f32\", \"bf16\"]\n\
         batch_size_per_rank = [32, 64]\nranks = [1, 2, 3]\nsync = [\"allreduce\", { sync = \"local-sgd\", every = 4 }]\n\
         network = [\"machine\", \"hosts:1gbit\", \"slurm\"]\nhosts = 1\nskip = [{ network = \"machine\" }]\n",
    )
    .unwrap();
    assert_eq!(cells.len(), 2 * 2 * 2 * 3 * 2 * 2);
    let ids: BTreeSet<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(ids.len(), cells.len());
    for id in [
        "resnet20-f32-b32-r2-allreduce-1gbit",
        "resnet44-bf16-b64-r3-local-sgd-slurm-every4",
    ] {
        assert!(ids.contains(id), "{ids:?}");
    }
}

#[test]
fn settings_and_arguments_agree() {
    let cell = &study(
        "[base]\nsteps = 5\ndevice = \"flex\"\n[[matrix]]\nscaling = \"weak\"\nbatch-size-per-rank = 32\nranks = 2\n\
         network = \"hosts:200mbit\"\n",
    )
    .unwrap().1[0];
    let expected = "bench --device flex --dtype f32 --model resnet20 --steps 5 --sync allreduce --threads 1 \
                    --batch-size-per-rank 32 --json";
    assert_eq!(cell.arguments.join(" "), expected);
    for (key, value) in [
        ("global_batch_size", "64"),
        ("network", "200mbit"),
        ("launcher", "hosts"),
        ("ranks", "2"),
        ("hosts", "2"),
        ("scaling", "weak"),
        ("steps", "5"),
    ] {
        assert_eq!(cell.setting(key), value, "{key}");
    }
    let record = cell.record();
    assert_eq!((record.kind.as_str(), record.repetitions), ("bench", 3));
}

#[test]
fn strong_scaling_divides_the_batch_or_refuses() {
    for (global, ranks, passes) in
        (1..=48).flat_map(|g| (1..=6).flat_map(move |r| (1..=3).map(move |p| (g, r, p))))
    {
        let got = matrix(&format!(
            "scaling = \"strong\"\nglobal_batch_size = {global}\nranks = {ranks}\ngrad_accum_steps = {passes}"
        ));
        if global % (ranks * passes) == 0 {
            let cell = &got.unwrap()[0];
            let own = (global / ranks / passes).to_string();
            assert_eq!(cell.setting("batch_size_per_rank"), own);
            assert_eq!(cell.setting("global_batch_size"), global.to_string());
            assert!(cell.id.contains("-strong"));
        } else {
            let text = got.unwrap_err().to_string();
            let ranks = records::counted(ranks, "rank");
            let expected = format!("{global} samples do not divide by {ranks} of {passes} passes");
            assert!(text.contains(&expected), "{text}");
        }
    }
    // The batch of a matrix replaces the batch of all cells.
    let strong = "[base]\nbatch_size_per_rank = 8\n[[matrix]]\nscaling = \"strong\"\nglobal_batch_size = 8\nranks = 2\n";
    let (_, cells) = study(strong).unwrap();
    assert_eq!(cells[0].setting("batch_size_per_rank"), "4");
}

#[test]
fn a_training_gets_the_batch_of_the_file() {
    let words = |kind: &str, batch: &str| {
        let lines = format!(
            "kind = \"{kind}\"\nranks = 2\ngrad_accum_steps = 2\nreduction = \"exact\"\n{batch}"
        );
        matrix(&lines).unwrap()[0].arguments.join(" ")
    };
    let global = "global_batch_size = 16";
    let own = "batch_size_per_rank = 4";
    for (kind, batch, end) in [
        ("train", global, "--global-batch-size 16"),
        ("train", own, "--batch-size-per-rank 4"),
        ("bench", global, "--batch-size-per-rank 4 --json"),
    ] {
        let words = words(kind, batch);
        assert!(words.ends_with(end), "{words}");
        assert_eq!(words.matches("batch-size").count(), 1, "{words}");
    }
}

#[test]
fn separate_servers_are_further_processes() {
    let cells = matrix(
        "batch_size_per_rank = 8\nranks = [1, 2]\nsync = [\"parameter-server\", \
         { sync = \"async-parameter-server\", servers = 2, server_placement = \"own\" }]",
    )
    .unwrap();
    for cell in cells {
        let is_separate = cell.setting("sync") != "parameter-server";
        assert_eq!(cell.world_size, cell.ranks + 2 * usize::from(is_separate));
    }
}

#[test]
fn points_are_skipped_and_overridden_in_order() {
    let rest = "ranks = [1, 2]\nsync = [\"allreduce\", \"local-sgd\"]\n";
    let skip = "skip = [{ ranks = 1, sync = [\"local-sgd\", \"x\"] }]";
    assert_eq!(ids(&format!("{rest}{skip}")).len(), 3);
    let first = "{ when = { ranks = 2 }, set = { bucket-mib = 4 } }";
    let second = "{ when = { bucket_mib = 4 }, set = { every = 8 } }";
    for id in ids(&format!("{rest}overrides = [{first}, {second}]")) {
        assert_eq!(
            id.ends_with("-bucket_mib4-every8"),
            id.contains("-r2-"),
            "{id}"
        );
    }
}

#[test]
fn an_id_is_a_file_name_and_stays_the_same_when_lists_grow() {
    let few = ids("compress = [\"powersgd:4\", \"none\"]\nbucket_mib = [1]");
    assert_eq!(
        few[0],
        "resnet20-f32-b8-r1-allreduce+powersgd_4-machine-bucket_mib1"
    );
    let more = ids("compress = [\"powersgd:4\", \"none\", \"bf16\"]\nbucket_mib = [1, 0.5]");
    assert!(
        few.iter().all(|id| more.contains(id)),
        "{few:?} in {more:?}"
    );
    let all = ids("learning_rate = 0.1\nmodel = [\"a/../b c\"]\nthreads = 2");
    assert_eq!(all, ["a_.._b_c-f32-b8-r1-t2-allreduce-machine"]);
    // Long values leave room for the endings of files.
    let long = ["a", "b"].map(|end| format!("/{}/{end}", "x".repeat(300)));
    let all = ids(&format!("data_dir = {long:?}"));
    assert!(
        all[0] != all[1] && all.iter().all(|id| id.len() == 255),
        "{all:?}"
    );
    assert_eq!(ids(&format!("data_dir = {:?}", &long[1..])), all[1..]);
}

#[test]
fn a_network_is_measured_once_for_all_its_predictions() {
    let rest = "[predict]\nprofile = \"together\"\n[[matrix]]\nbatch_size_per_rank = [8, 16]\nranks = [1, 2]\n\
                network = [\"machine\", \"hosts:1gbit\"]\n";
    let own =
        "[[matrix]]\nkind = \"netbench\"\nranks = 2\nnetwork = [\"machine\", \"hosts:1gbit\"]\n";
    for text in [rest.to_owned(), format!("{rest}{own}")] {
        let (_, cells) = study(&text).unwrap();
        let measuring = cells.iter().filter(|cell| cell.kind == Kind::Netbench);
        let measuring: Vec<&str> = measuring.map(|cell| cell.id.as_str()).collect();
        assert_eq!(measuring, ["netbench-r2-machine", "netbench-r2-1gbit"]);
    }
}

#[test]
fn invalid_keys_and_places_are_refused_with_the_key() {
    let twice = "[[matrix]]\nbatch_size_per_rank = 8\n[[matrix]]\nbatch_size_per_rank = 8\n";
    let in_all =
        "[train]\noutput_dir = \"x\"\n[[matrix]]\nkind = \"train\"\nbatch_size_per_rank = 8\n";
    for (text, expected) in [
        (
            twice,
            "two cells are `resnet20-f32-b8-r1-allreduce-machine`",
        ),
        (in_all, "s.toml: [[matrix]] 1: output_dir: expected"),
    ] {
        let text = study(text).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    for (lines, expected) in [
        (
            "kind = \"train\"\nresume = [true, false]",
            "resume: expected",
        ),
        ("json = true", "json: expected"),
        ("kind = \"netbench\"\noutput = \"x\"", "output: expected"),
        ("steps = 0", "steps: expected"),
        ("steps = [[1]]", "steps: expected one value, got [1]"),
        ("network = \"hosts:fast\"", "network: expected a rate"),
        ("network = \"lan\"", "expected machine, slurm or hosts:RATE"),
        (
            "ranks = [0]",
            "ranks: expected a whole number from 1, got 0",
        ),
        ("ranks = []", "ranks: expected at least one value"),
        (
            "ranks = 3\nnetwork = \"slurm\"",
            "3 processes do not spread evenly over 2 nodes",
        ),
        ("scaling = \"strong\"", "with scaling `strong` global"),
        ("global_batch_size = 8", "remove the other"),
        (
            "scaling = \"weak\"\nglobal_batch_size = 8",
            "with scaling `weak` batch_size_per_rank",
        ),
        ("skip = [{ ranks = 3 }]", "skip: no point has { ranks = 3 }"),
        (
            "ranks = [1, 2]\nskip = [{ ranks = [1, 2] }]",
            "every point is skipped",
        ),
        (
            "overrides = [{ when = { ranks = 5 }, set = { steps = 1 } }]",
            "overrides: no point has { ranks = 5 }",
        ),
        (
            "every = 4\noverrides = [{ when = { every = 4 }, set = { every = 8 } }, { when = { every = 4 }, set = { seed = 1 } }]",
            "overrides: no point has { every = 4 }",
        ),
        (
            "ranks = [1, 2]\nexclude = [{ ranks = 1, every = 4 }]",
            "ranks: expected in one list, got it in exclude and in ranks",
        ),
        (
            "a = [{ every = 4 }, { every = 8 }]\nb = [{ every = 2, ranks = 2 }]",
            "every: expected in one list, got it in a and in b",
        ),
        (
            "every = 3\nsync = [\"allreduce\", { sync = \"local-sgd\", every = 4 }]",
            "in every and in sync",
        ),
    ] {
        let failure = matrix(&format!("batch_size_per_rank = 8\n{lines}")).unwrap_err();
        let text = failure.to_string();
        assert!(
            failure.exit_code() == 2 && text.contains(expected),
            "{text}\nfor {lines}"
        );
    }
    let many = Vec::from_iter(1..=101);
    let lines = format!("batch_size_per_rank = 8\nseed = {many:?}\nsteps = {many:?}");
    let text = matrix(&lines).unwrap_err().to_string();
    let expected = "steps: expected at most 10000 cells, got 10201: shorten a list";
    assert!(text.contains(expected), "{text}");
    let neither = matrix("ranks = 2").unwrap_err().to_string();
    assert!(
        neither.contains("expected batch_size_per_rank or global"),
        "{neither}"
    );
}
