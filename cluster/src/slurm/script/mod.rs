//! The batch script.
//!
//! In: a [`Request`], the trainer's path. Out: text for sbatch that a person can read, too.
//! Invariant: pure. The handling of signals follows a real cluster; comments say what Slurm does by
//! itself.
//!
//! Slurm 22.05 was seen to send these signals (state of the job in parentheses):
//! - a limit's warning without `B:`, `scancel --signal=USR1`: the ranks get USR1, srun and this
//!   script nothing (`RUNNING`);
//! - preemption with a time of grace: the ranks get CONT and TERM, this script nothing; if the
//!   script ends within that time, the job is complete and Slurm does not requeue it by itself
//!   (`RUNNING`);
//! - plain scancel, `scontrol requeue`, end of the time limit: ranks, srun and this script get CONT
//!   and TERM, after KillWait KILL (`COMPLETING`);
//! - a rank that dies: with `--kill-on-bad-exit` the others get TERM, so that srun returns 143
//!   where one rank ended with 2.

use std::path::Path;

use super::request::{Request, TASK};
use crate::process::quoted;
use crate::restart::{ScriptLauncher, Start};

pub(super) use records::JOB_SCRIPT as FILE;

/// Returns the script for a trainer at this path.
pub(super) fn text(request: &Request, trainer: &Path) -> String {
    let command = command(request, trainer);
    let start = Start {
        command: &command,
        restarts: request.args.restarts.unwrap_or(0),
        launcher: ScriptLauncher::Srun,
    };
    // A signal may come while modules are loaded.
    let signals = start.launcher.signals();
    [
        directives(request),
        signals,
        surroundings(request),
        start.text(),
        ending(request),
    ]
    .concat()
}

/// Returns the name of a job's output in its directory: `slurm-12.out`, for a task of an array
/// `slurm-12_3.out`.
pub fn output_name(job: &str) -> String {
    format!("slurm-{job}.out")
}

fn directives(request: &Request) -> String {
    let args = &request.args;
    let directory = &request.job.directory;
    let mut text = format!(
        "#!/bin/bash\n\
         # Written by `trainer slurm submit`. To resume the run later: sbatch {}\n\n",
        quoted(directory.join(FILE))
    );
    let mut line = |name: &str, value: &str| {
        let line = format!("#SBATCH --{name:<18}{value}");
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line("job-name", &request.job.name);
    line("nodes", &args.nodes.to_string());
    line("ntasks-per-node", &args.ntasks_per_node.to_string());
    if let Some(count) = args.cpus_per_task {
        line("cpus-per-task", &count.to_string());
    }
    for (name, value) in args.of_sbatch() {
        line(name, value);
    }
    if args.exclusive {
        line("exclusive", "");
    }
    let (suffix, job) = match &args.array {
        Some(array) => {
            line("array", &array.specification);
            ("-%a", "%A_%a")
        }
        None => ("", "%j"),
    };
    let folder = request.working_directory.to_string_lossy();
    line("chdir", &directive_word(&folder));
    let file = format!("{}{suffix}/{}", directory.display(), output_name(job));
    line("output", &directive_word(&file));
    text.push_str(
        "# A requeued job continues in the same file.\n#SBATCH --open-mode         append\n",
    );
    text.push_str(match args.requeue {
        true => {
            "# After a preemption, a node's failure, or a stop (see the end of this script).\n#SBATCH --requeue\n"
        }
        false => "#SBATCH --no-requeue\n",
    });
    if request.job.trains() {
        text.push_str(&format!(
            "# So many seconds before the time limit, or up to a minute earlier, the ranks stop with a checkpoint.\n\
             # Without `B:` the signal goes to the ranks, not to this script.\n\
             #SBATCH --signal            USR1@{}\n",
            args.warn_s()
        ));
    }
    text
}

/// Returns a value in sbatch's quotes if it has blanks; other special characters were refused.
fn directive_word(value: &str) -> String {
    match value.contains(|c: char| !c.is_ascii_graphic() || "#;&|<>()$`*?".contains(c)) {
        true => format!("\"{value}\""),
        false => value.to_owned(),
    }
}

fn surroundings(request: &Request) -> String {
    let args = &request.args;
    let directory = quoted(&request.job.directory);
    let (job, suffix) = match args.array {
        // The id without a task would mean all tasks of the array.
        Some(_) => (
            "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
            "-\"$SLURM_ARRAY_TASK_ID\"",
        ),
        None => ("$SLURM_JOB_ID", ""),
    };
    let mut text =
        format!("\njob=\"{job}\"\nrun_dir={directory}{suffix}\nmkdir -p \"$run_dir\" || exit 1\n");
    if !args.module.is_empty() {
        let modules: Vec<String> = args.module.iter().map(quoted).collect();
        text.push_str(&format!(
            "\n# A batch shell may not know `module` before it has read the system's profile.\n\
             command -v module >/dev/null || . /etc/profile\n\
             module load {} || exit 1\n",
            modules.join(" ")
        ));
    }
    for (name, value) in &args.env {
        text.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    text.push_str(HELPERS);
    if args.restarts.is_some() {
        text.push_str(&RESTART_HELPERS.replace("OUTPUT", &output_name("$job")));
    }
    text
}

const HELPERS: &str = r#"
say() { echo "$(date '+%F %T') job $job: $*"; }

# Whether the job has this field, such as `JobState=RUNNING`.
slurm_says() { scontrol --oneliner show job "$job" | grep -q " $1 "; }
"#;

/// `OUTPUT` stands for the job's output.
const RESTART_HELPERS: &str = r#"
# A job that was cancelled, queued again by hand or timed out does not run any more, though this script does.
job_runs() { slurm_says JobState=RUNNING; }

# The first rank to leave with code 2 makes Slurm end the others, and srun returns the larger code of those;
# what it writes about the first is in the output.
output="$run_dir/OUTPUT"
size_before=$(stat -c %s "$output" 2>/dev/null || echo 0)
usage_was_wrong() {
    [ "$code" = 2 ] || tail -c "+$((size_before + 1))" "$output" | grep -q '^srun: error: .*Exited with exit code 2$'
}
"#;

/// Returns the line of srun, continued over several lines.
fn command(request: &Request, trainer: &Path) -> String {
    let mut srun = format!(
        "srun --mpi={} --kill-on-bad-exit=1 --cpu-bind={}",
        quoted(&request.args.mpi),
        quoted(&request.args.cpu_bind)
    );
    if let Some(count) = request.args.cpus_per_task {
        // Since 22.05 srun does not inherit it from the job.
        srun.push_str(&format!(" --cpus-per-task={count}"));
    }
    let mut lines = vec![srun];
    if let Some(image) = &request.args.container {
        let gpus = request.args.gpus_per_task.as_ref().map_or("", |_| " --nv");
        lines.push(format!(
            "apptainer exec{gpus} --bind \"$PWD\",\"$run_dir\" {}",
            quoted(image)
        ));
    }
    let words = std::iter::once(quoted(&request.job.command))
        .chain(request.job.words.iter().map(|word| with_task(word)));
    lines.push(format!(
        "{} {}",
        quoted(trainer),
        words.collect::<Vec<_>>().join(" ")
    ));
    if request.job.trains() {
        lines.push("--output-dir \"$run_dir\" --resume".to_owned());
    }
    lines.join(" \\\n        ")
}

/// Returns a word for bash, with the task's number in place of the placeholder.
fn with_task(word: &str) -> String {
    let part = |part: &str| match part.is_empty() {
        true => String::new(),
        false => quoted(part),
    };
    let parts: Vec<String> = word.split(TASK).map(part).collect();
    match parts.len() {
        1 => quoted(word),
        _ => parts.join("\"$SLURM_ARRAY_TASK_ID\""),
    }
}

fn ending(request: &Request) -> String {
    let ending = match (request.job.trains(), request.args.requeue) {
        (false, _) => String::new(),
        (true, false) => [WAS_STOPPED, STOPPED].concat(),
        (true, true) => [WAS_STOPPED, REQUEUED].concat(),
    };
    format!("{ending}\nexit \"$code\"\n")
}

const WAS_STOPPED: &str = r#"
# ---- The end -------------------------------------------------------------------------------------
# Stopped by a signal before its last epoch, or before it was started.
was_stopped() {
    [ -z "$program" ] || grep -q '"stopped_early": *true' "$run_dir/summary.json"
}
"#;

const REQUEUED: &str = r#"
if [ "$code" = 0 ] && was_stopped; then
    if slurm_says JobState=RUNNING && slurm_says Requeue=1; then
        say "stopped before its end: back into the queue, to resume from the checkpoint"
        scontrol requeue "$job" || { say "could not be queued again"; exit 1; }
        # Were this script to end first, the job would count as complete. Slurm ends the sleep.
        trap - TERM INT HUP USR1 USR2 XCPU
        exec sleep 600
    fi
    say "stopped before its end and not queued again from here: Requeue is off, or the job was cancelled or requeued by hand"
fi
"#;

const STOPPED: &str = r#"
if [ "$code" = 0 ] && was_stopped; then
    say "stopped before its end; this script submitted again resumes from the checkpoint"
fi
"#;

#[cfg(test)]
mod tests;
