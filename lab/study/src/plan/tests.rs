//! Tests of multiplying matrices out.

use std::collections::BTreeSet;

use super::*;

/// A study's file of this text behind what each has, and its cells.
pub(crate) fn study(rest: &str) -> Outcome<(StudyFile, Vec<Cell>)> {
    let head = "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n";
    let file = StudyFile::read("s.toml", &format!("{head}{rest}"), &Table::new())?;
    let cells = cells(&file)?;
    Ok((file, cells))
}

fn planned(rest: &str) -> Outcome<Vec<Cell>> {
    Ok(study(rest)?.1)
}

fn ids(rest: &str) -> Vec<String> {
    planned(rest)
        .unwrap()
        .into_iter()
        .map(|cell| cell.id)
        .collect()
}

fn refusal(rest: &str) -> String {
    let failure = planned(rest).unwrap_err();
    assert_eq!(failure.exit_code(), 2);
    failure.to_string()
}

#[test]
fn a_matrix_has_every_combination_once() {
    let cells = planned(
        "[base]\nsteps = 5\n[[matrix]]\nscaling = \"weak\"\nmodel = [\"resnet20\", \"resnet44\"]\ndtype = [\"f32\", \"bf16\"]\n\
         batch_size_per_rank = [32, 64]\nranks = [1, 2, 3]\nsync = [\"allreduce\", { sync = \"local-sgd\", every = 4 }]\n\
         network = [\"machine\", \"hosts:1gbit\", \"slurm\"]\nhosts = 1\nskip = [{ network = \"machine\" }]\n",
    )
    .unwrap();
    assert_eq!(cells.len(), 2 * 2 * 2 * 3 * 2 * 2);
    let ids: BTreeSet<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(ids.len(), cells.len());
    assert!(
        ids.contains("resnet20-f32-b32-r2-allreduce-1gbit"),
        "{ids:?}"
    );
    assert!(
        ids.contains("resnet44-bf16-b64-r3-local-sgd-slurm-every4"),
        "{ids:?}"
    );
}

#[test]
fn settings_and_arguments_say_the_same() {
    let cell = &planned(
        "[base]\nsteps = 5\ndevice = \"flex\"\n[[matrix]]\nscaling = \"weak\"\nbatch-size-per-rank = 32\nranks = 2\n\
         network = \"hosts:200mbit\"\n",
    )
    .unwrap()[0];
    let expected = "bench --device flex --dtype f32 --model resnet20 --steps 5 --sync allreduce --threads 1 \
                    --batch-size-per-rank 32 --json";
    assert_eq!(cell.arguments.join(" "), expected);
    let of = |name: &str| cell.setting(name);
    assert_eq!(
        (of("global_batch_size"), of("network"), of("launcher")),
        ("64".into(), "200mbit".into(), "hosts".into())
    );
    assert_eq!(
        (of("ranks"), of("hosts"), of("scaling"), of("steps")),
        ("2".into(), "2".into(), "weak".into(), "5".into())
    );
    let record = cell.record();
    assert_eq!((record.kind.as_str(), record.repetitions), ("bench", 3));
}

#[test]
fn strong_scaling_divides_the_batch_or_refuses() {
    for (global, ranks, passes) in
        (1..=48).flat_map(|g| (1..=6).flat_map(move |r| (1..=3).map(move |p| (g, r, p))))
    {
        let got = planned(&format!(
            "[[matrix]]\nscaling = \"strong\"\nglobal_batch_size = {global}\nranks = {ranks}\ngrad_accum_steps = {passes}\n"
        ));
        if global % (ranks * passes) == 0 {
            let cell = &got.unwrap()[0];
            assert_eq!(
                cell.setting("batch_size_per_rank"),
                (global / ranks / passes).to_string()
            );
            assert_eq!(cell.setting("global_batch_size"), global.to_string());
            assert!(cell.id.contains("-strong"));
        } else {
            let text = got.unwrap_err().to_string();
            assert!(
                text.contains(&format!("{global} samples do not divide by {ranks} ranks")),
                "{text}"
            );
        }
    }
}

#[test]
fn batches_that_contradict_the_scaling_are_refused() {
    assert!(
        refusal("[[matrix]]\nscaling = \"weak\"\nglobal_batch_size = 8\n")
            .contains("weak scaling keeps")
    );
    assert!(
        refusal("[[matrix]]\nscaling = \"strong\"\nbatch_size_per_rank = 8\n")
            .contains("strong scaling keeps")
    );
    assert!(
        refusal("[[matrix]]\nbatch_size_per_rank = 8\nglobal_batch_size = 8\n")
            .contains("keep one")
    );
    assert!(refusal("[[matrix]]\nranks = 2\n").contains("expected batch_size_per_rank"));
    // A matrix's own word on the batch wins over that of all cells.
    let strong = "[base]\nbatch_size_per_rank = 8\n[[matrix]]\nscaling = \"strong\"\nglobal_batch_size = 8\nranks = 2\n";
    assert_eq!(
        planned(strong).unwrap()[0].setting("batch_size_per_rank"),
        "4"
    );
}

#[test]
fn flags_that_the_study_gives_itself_and_no_steps_are_refused() {
    for (rest, key) in [
        (
            "[train]\noutput_dir = \"x\"\n[[matrix]]\nkind = \"train\"\n",
            "output_dir",
        ),
        (
            "[[matrix]]\nkind = \"train\"\nresume = [true, false]\n",
            "resume",
        ),
        ("[base]\njson = true\n[[matrix]]\n", "json"),
        ("[base]\nsteps = 0\n[[matrix]]\n", "steps"),
    ] {
        let text = refusal(&format!("{rest}batch_size_per_rank = 8\n"));
        assert!(
            text.contains(&format!("s.toml: [[matrix]] 1: {key}: expected")),
            "{text}"
        );
    }
    assert!(
        refusal("[[matrix]]\nkind = \"netbench\"\noutput = \"x\"\n")
            .contains("not the study's own to give")
    );
}

#[test]
fn a_training_is_told_the_batch_that_the_file_has() {
    let of = |kind: &str, batch: &str| {
        let lines = format!(
            "kind = \"{kind}\"\nranks = 2\ngrad_accum_steps = 2\nreduction = \"exact\"\n{batch}\n"
        );
        planned(&format!("[[matrix]]\n{lines}")).unwrap()[0]
            .arguments
            .join(" ")
    };
    let global = "global_batch_size = 16";
    let training = of("train", global);
    assert!(
        training.ends_with("--global-batch-size 16") && !training.contains("per-rank"),
        "{training}"
    );
    assert!(of("train", "batch_size_per_rank = 4").ends_with("--batch-size-per-rank 4"));
    assert!(of("bench", global).ends_with("--batch-size-per-rank 4 --json"));
}

#[test]
fn servers_of_their_own_are_further_processes() {
    let cells = planned(
        "[[matrix]]\nbatch_size_per_rank = 8\nranks = [1, 2]\nsync = [\"parameter-server\", \
         { sync = \"async-parameter-server\", servers = 2, server_placement = \"own\" }]\n",
    )
    .unwrap();
    let worlds: Vec<(String, usize, usize)> = cells
        .iter()
        .map(|cell| (cell.setting("sync"), cell.ranks, cell.world_size))
        .collect();
    for (sync, ranks, world_size) in worlds {
        assert_eq!(
            world_size,
            ranks + if sync == "parameter-server" { 0 } else { 2 }
        );
    }
}

#[test]
fn skipped_points_and_overrides_must_exist() {
    let rest = "[[matrix]]\nbatch_size_per_rank = 8\nranks = [1, 2]\nsync = [\"allreduce\", \"local-sgd\"]\n";
    assert_eq!(
        ids(&format!(
            "{rest}skip = [{{ ranks = 1, sync = [\"local-sgd\", \"x\"] }}]\n"
        ))
        .len(),
        3
    );
    assert!(
        refusal(&format!("{rest}skip = [{{ ranks = 3 }}]\n"))
            .contains("skip: no point has { ranks = 3 }")
    );
    assert!(
        refusal(&format!("{rest}skip = [{{ ranks = [1, 2] }}]\n"))
            .contains("every point is skipped")
    );
    let set = "overrides = [{ when = { ranks = 2 }, set = { bucket-mib = 4 } }]\n";
    let cells = planned(&format!("{rest}{set}")).unwrap();
    for cell in &cells {
        assert_eq!(
            cell.setting("bucket_mib"),
            if cell.ranks == 2 { "4" } else { "" }
        );
        assert_eq!(
            cell.id.ends_with("-bucket_mib4"),
            cell.ranks == 2,
            "{}",
            cell.id
        );
    }
    let unmet = refusal(&format!(
        "{rest}overrides = [{{ when = {{ ranks = 5 }}, set = {{ steps = 1 }} }}]\n"
    ));
    assert!(unmet.contains("overrides: no point"), "{unmet}");
}

#[test]
fn overrides_meet_points_as_those_before_them_have_left_them() {
    let rest = "[[matrix]]\nbatch_size_per_rank = 8\nranks = [1, 2]\nevery = 4\n";
    let first = "{ when = { ranks = 2, every = 4 }, set = { every = 8 } }";
    let chain = |then: &str| format!("{rest}overrides = [{first}, {then}]\n");
    let cells = planned(&chain("{ when = { every = 8 }, set = { bucket_mib = 4 } }")).unwrap();
    let buckets: Vec<String> = cells
        .iter()
        .map(|cell| cell.setting("bucket_mib"))
        .collect();
    assert_eq!(buckets, ["", "4"]);
    let without_effect = refusal(&chain(
        "{ when = { ranks = 2, every = 4 }, set = { bucket_mib = 4 } }",
    ));
    assert!(
        without_effect.contains("overrides: no point has { every = 4, ranks = 2 }"),
        "{without_effect}"
    );
}

#[test]
fn a_key_that_two_lists_set_is_refused() {
    for (lists, both) in [
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
        let text = refusal(&format!("[[matrix]]\nbatch_size_per_rank = 8\n{lists}\n"));
        assert!(text.contains(both), "{text}\nfor {lists}");
    }
}

#[test]
fn an_id_is_a_files_name_and_stays_when_lists_grow() {
    let few = ids(
        "[[matrix]]\nbatch_size_per_rank = 8\ncompress = [\"powersgd:4\", \"none\"]\nbucket_mib = [1]\n",
    );
    assert_eq!(
        few[0],
        "resnet20-f32-b8-r1-allreduce+powersgd_4-machine-bucket_mib1"
    );
    let more = ids(
        "[[matrix]]\nbatch_size_per_rank = 8\ncompress = [\"powersgd:4\", \"none\", \"bf16\"]\nbucket_mib = [1, 0.5]\n",
    );
    assert!(
        few.iter().all(|id| more.contains(id)),
        "{few:?} in {more:?}"
    );
    let all = ids(
        "[[matrix]]\nbatch_size_per_rank = 8\nlearning_rate = 0.1\nmodel = [\"a/../b c\"]\nthreads = 2\n",
    );
    assert_eq!(all, ["a_.._b_c-f32-b8-r1-t2-allreduce-machine"]);
}

#[test]
fn an_id_of_long_values_has_room_for_the_endings_of_its_files() {
    let list =
        |paths: &[String]| format!("[[matrix]]\nbatch_size_per_rank = 8\ndata_dir = {paths:?}\n");
    let long = ["a", "b"].map(|end| format!("/{}/{end}", "x".repeat(300)));
    let all = ids(&list(&long));
    assert!(
        all[0] != all[1] && all.iter().all(|id| id.len() == 255),
        "{all:?}"
    );
    assert_eq!(ids(&list(&long[1..])), all[1..], "it stays when lists grow");
}

#[test]
fn cells_that_cannot_be_told_apart_are_refused() {
    let twice = "[[matrix]]\nbatch_size_per_rank = 8\n[[matrix]]\nbatch_size_per_rank = 8\n";
    assert!(refusal(twice).contains("two cells are `resnet20-f32-b8-r1-allreduce-machine`"));
}

#[test]
fn odd_places_and_values_are_refused() {
    for (line, expected) in [
        ("network = \"hosts:fast\"", "network: expected a rate"),
        ("network = \"lan\"", "expected machine, slurm or hosts:RATE"),
        (
            "ranks = [0]",
            "ranks: expected a whole number from 1, got 0",
        ),
        ("ranks = []", "ranks: expected at least one value"),
        ("steps = [[1]]", "steps: expected one value, got [1]"),
        (
            "ranks = 3\nnetwork = \"slurm\"",
            "3 processes do not spread evenly over 2 nodes",
        ),
    ] {
        let text = refusal(&format!("[[matrix]]\nbatch_size_per_rank = 8\n{line}\n"));
        assert!(text.contains(expected), "{text}\nfor {line}");
    }
}

#[test]
fn a_network_is_measured_once_for_all_its_predictions() {
    let rest = "[predict]\nprofile = \"together\"\n[[matrix]]\nbatch_size_per_rank = [8, 16]\nranks = [1, 2]\n\
                network = [\"machine\", \"hosts:1gbit\"]\n";
    let cells = planned(rest).unwrap();
    let added: Vec<&str> = cells
        .iter()
        .filter(|cell| cell.kind == Kind::Netbench)
        .map(|cell| cell.id.as_str())
        .collect();
    assert_eq!(added, ["netbench-r2-machine", "netbench-r2-1gbit"]);
    let own = format!(
        "{rest}[[matrix]]\nkind = \"netbench\"\nranks = 2\nnetwork = [\"machine\", \"hosts:1gbit\"]\n"
    );
    assert_eq!(
        planned(&own)
            .unwrap()
            .iter()
            .filter(|cell| cell.kind == Kind::Netbench)
            .count(),
        2
    );
}
