//! The batch script: pure text made from a request.
//!
//! In: a [`Request`], the trainer's path. Out: what sbatch reads and a person can read, too.
//! Invariant: what the script does on a signal was seen on a real cluster; the comments say what Slurm does by itself.
//!
//! What was seen with Slurm 22.05 (state of the job in parentheses, who gets what signal):
//! - a limit's warning without `B:`, `scancel --signal=USR1`: the ranks USR1; neither srun nor this script (`RUNNING`);
//! - preemption with a time of grace: the ranks CONT and TERM, this script nothing; if it ends within that time the job
//!   is complete and Slurm does not queue it again by itself (`RUNNING`);
//! - plain scancel, `scontrol requeue`, end of the time limit: ranks, srun and this script CONT and TERM, after
//!   KillWait KILL (`COMPLETING`);
//! - a rank that dies: with `--kill-on-bad-exit` the others TERM, so that srun tells 143 where one rank ended with 2.

use std::path::Path;

use super::array::TASK;
use super::request::Request;
use crate::process::quoted;
use crate::restart::{Launcher, Start};

pub(super) const FILE: &str = "job.sbatch";

/// The script for a trainer at this path.
pub(super) fn text(request: &Request, trainer: &Path) -> String {
    let command = command(request, trainer);
    let start = Start {
        command: &command,
        restarts: request.restarts,
        launcher: Launcher::Srun,
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

/// The name of a job's output in its directory: `slurm-12.out`, for a task of an array `slurm-12_3.out`.
pub(super) fn output_name(job: &str) -> String {
    format!("slurm-{job}.out")
}

fn directives(request: &Request) -> String {
    let directory = &request.job.directory;
    let script = directory.join(FILE);
    let mut text = format!(
        "#!/bin/bash\n\
         # Written by `trainer slurm submit`. To go on with the same run later: sbatch {}\n\n",
        quoted(&script)
    );
    let mut line = |name: &str, value: &str| {
        let line = format!("#SBATCH --{name:<18}{value}");
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line("job-name", &request.job.name);
    line("nodes", &request.nodes.to_string());
    line("ntasks-per-node", &request.ntasks_per_node.to_string());
    if let Some(count) = request.cpus_per_task {
        line("cpus-per-task", &count.to_string());
    }
    for (name, value) in &request.passed {
        line(name, value);
    }
    if request.is_exclusive {
        line("exclusive", "");
    }
    if let Some(array) = &request.array {
        line("array", &array.specification);
    }
    line(
        "chdir",
        &directive_word(&request.working_directory.to_string_lossy()),
    );
    let (end, job) = if request.array.is_some() {
        ("-%a", "%A_%a")
    } else {
        ("", "%j")
    };
    line(
        "output",
        &directive_word(&format!(
            "{}{end}/{}",
            directory.display(),
            output_name(job)
        )),
    );
    text.push_str("# A job that is queued again goes on in the same file.\n");
    text.push_str("#SBATCH --open-mode         append\n");
    if request.is_requeued {
        text.push_str(
            "# After a preemption, a node's failure, or a stop (see the end of this script).\n",
        );
        text.push_str("#SBATCH --requeue\n");
    } else {
        text.push_str("#SBATCH --no-requeue\n");
    }
    if request.job.trains() {
        text.push_str(
            "# So many seconds before the time limit, or up to a minute earlier, the ranks stop with a checkpoint.\n\
             # Without `B:` the signal goes to the ranks, not to this script.\n",
        );
        text.push_str(&format!(
            "#SBATCH --signal            USR1@{}\n",
            request.warn_s
        ));
    }
    text
}

/// A value with blanks in sbatch's quotes; other odd characters were refused.
fn directive_word(value: &str) -> String {
    if value.contains(|c: char| !c.is_ascii_graphic() || "#;&|<>()$`*?".contains(c)) {
        format!("\"{value}\"")
    } else {
        value.to_owned()
    }
}

fn surroundings(request: &Request) -> String {
    let mut text = String::new();
    let directory = quoted(&request.job.directory);
    let (job, suffix) = match request.array {
        // The bare id would mean every task of the array.
        Some(_) => (
            "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
            "-\"$SLURM_ARRAY_TASK_ID\"",
        ),
        None => ("$SLURM_JOB_ID", ""),
    };
    text.push_str(&format!(
        "\njob=\"{job}\"\nrun_dir={directory}{suffix}\nmkdir -p \"$run_dir\" || exit 1\n"
    ));
    if !request.modules.is_empty() || !request.exports.is_empty() {
        text.push_str(
            "\n# ---- Environment ---------------------------------------------------------------------------------\n",
        );
    }
    if !request.modules.is_empty() {
        text.push_str(
            "# A batch shell may not know `module` before it has read the system's profile.\n",
        );
        text.push_str("command -v module >/dev/null || . /etc/profile\n");
        text.push_str(&format!(
            "module load {} || exit 1\n",
            request
                .modules
                .iter()
                .map(quoted)
                .collect::<Vec<_>>()
                .join(" ")
        ));
    }
    for (name, value) in &request.exports {
        text.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    text.push_str(
        "\nsay() { echo \"$(date '+%F %T') job $job: $*\"; }\n\
         \n\
         # Whether Slurm says this of the job, such as `JobState=RUNNING`.\n\
         slurm_says() { scontrol --oneliner show job \"$job\" | grep -q \" $1 \"; }\n",
    );
    if request.restarts > 0 {
        text.push_str(&format!(
            "\n# A job that was cancelled, queued again by hand or timed out does not run any more, though this script does.\n\
             job_runs() {{ slurm_says JobState=RUNNING; }}\n\
             \n\
             # The first rank to leave with code 2 makes Slurm end the others, and srun tells the larger code of those;\n\
             # what it writes about the first is in the output.\n\
             output=\"$run_dir/{}\"\n\
             size_before=$(stat -c %s \"$output\" 2>/dev/null || echo 0)\n\
             usage_was_wrong() {{\n    \
                 [ \"$code\" = 2 ] || tail -c \"+$((size_before + 1))\" \"$output\" | grep -q '^srun: error: .*Exited with exit code 2$'\n\
             }}\n",
            output_name("$job")
        ));
    }
    text
}

/// srun's line, continued over several.
fn command(request: &Request, trainer: &Path) -> String {
    let mut srun = format!(
        "srun --mpi={} --kill-on-bad-exit=1 --cpu-bind={}",
        quoted(&request.mpi),
        quoted(&request.cpu_bind)
    );
    if let Some(count) = request.cpus_per_task {
        // Since 22.05 srun does not take it from the job.
        srun.push_str(&format!(" --cpus-per-task={count}"));
    }
    let mut lines = vec![srun];
    if let Some(image) = &request.container {
        let gpus = if request
            .passed
            .iter()
            .any(|(name, _)| *name == "gpus-per-task")
        {
            " --nv"
        } else {
            ""
        };
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

/// A word for bash, with the task's number where it is asked for.
fn with_task(word: &str) -> String {
    let literal = |part: &str| {
        if part.is_empty() {
            String::new()
        } else {
            quoted(part)
        }
    };
    if !word.contains(TASK) {
        return quoted(word);
    }
    word.split(TASK)
        .map(literal)
        .collect::<Vec<_>>()
        .join("\"$SLURM_ARRAY_TASK_ID\"")
}

fn ending(request: &Request) -> String {
    if !request.job.trains() {
        return "\nexit \"$code\"\n".to_owned();
    }
    let head = "
# ---- The end -------------------------------------------------------------------------------------
# Stopped by a signal before its last epoch, or before it was started.
was_stopped() {
    [ -z \"$program\" ] || grep -q '\"stopped_early\": *true' \"$run_dir/summary.json\"
}
";
    let stopped = if request.is_requeued {
        "
if [ \"$code\" = 0 ] && was_stopped; then
    if slurm_says JobState=RUNNING && slurm_says Requeue=1; then
        say \"stopped before its end: back into the queue, to go on from the checkpoint\"
        scontrol requeue \"$job\" || { say \"could not be queued again\"; exit 1; }
        # Were this script to end first, the job would count as complete. Slurm ends the sleep.
        trap - TERM INT HUP USR1 USR2 XCPU
        exec sleep 600
    fi
    say \"stopped before its end and not queued again from here: Requeue is off, or the job was cancelled or requeued by hand\"
fi
"
    } else {
        "
if [ \"$code\" = 0 ] && was_stopped; then
    say \"stopped before its end; this script submitted again goes on from the checkpoint\"
fi
"
    };
    format!("{head}{stopped}exit \"$code\"\n")
}

#[cfg(test)]
mod tests;
