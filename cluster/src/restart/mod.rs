//! The common part of generated scripts: starts the program, passes signals, restarts after a
//! failure.
//!
//! In: the command as shell text, the number of restarts. Out: bash text that leaves the exit code
//! in `$code`.
//! Invariant: bash survives the signals that ask for a stop, so that the ranks can write their
//! checkpoint. Wrong usage and stopped runs are not restarted.
//!
//! The ranks get SIGUSR1 for each of these signals. mpirun (Open MPI 4.1.4) answers SIGTERM and
//! SIGINT by killing its ranks after a second, and `odls_base_sigkill_timeout` delays both of its
//! signals instead of the time between them. It forwards SIGUSR1 and SIGUSR2 to all ranks; MPICH's
//! (4.0.2) forwards SIGUSR1. srun answers SIGTERM by aborting the step and forwards SIGUSR1.

/// Program of a script, and its restarts.
pub(crate) struct Start<'a> {
    /// Command as bash text; the writer indents continued lines.
    pub(crate) command: &'a str,
    /// Number of restarts.
    pub(crate) restarts: usize,
    pub(crate) launcher: ScriptLauncher,
}

/// The launcher of the ranks; decides who else gets signals, and the effect of a second signal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScriptLauncher {
    /// In a batch job: only the scheduler kills.
    Srun,
    /// In a terminal or a service: a second SIGINT or SIGTERM ends all ranks at once.
    Mpirun,
    /// One rank without mpirun; signals as with mpirun.
    None,
}

impl Start<'_> {
    /// Returns the text. A script defines [`ScriptLauncher::signals`] before it, and with
    /// [`ScriptLauncher::Srun`] also `job_runs` and `usage_was_wrong`.
    pub(crate) fn text(&self) -> String {
        let run = RUN.replace("COMMAND", self.command);
        let course = match self.restarts {
            0 => ONCE.to_owned(),
            restarts => AGAIN
                .replace("RESTARTS", &restarts.to_string())
                .replace("USAGE", self.launcher.usage_was_wrong())
                .replace("STOPPED", self.launcher.was_stopped()),
        };
        run + &course
    }
}

impl ScriptLauncher {
    /// Returns the signal handlers of a script, which defines `say` before [`Start::text`].
    pub(crate) fn signals(self) -> String {
        SIGNALS.to_owned() + &self.traps()
    }

    fn traps(self) -> String {
        match self {
            ScriptLauncher::Srun => "trap ask_to_stop TERM INT HUP USR1 USR2 XCPU\n".to_owned(),
            // SIGKILL for mpirun would leave its ranks running. MPICH's forwards TERM, a second
            // wish to stop.
            ScriptLauncher::Mpirun => SECOND_SIGNAL.replace("ENDING", "INT"),
            ScriptLauncher::None => SECOND_SIGNAL.replace("ENDING", "KILL"),
        }
    }

    fn usage_was_wrong(self) -> &'static str {
        match self {
            ScriptLauncher::Srun => "usage_was_wrong",
            ScriptLauncher::Mpirun | ScriptLauncher::None => "[ \"$code\" = 2 ]",
        }
    }

    fn was_stopped(self) -> &'static str {
        match self {
            ScriptLauncher::Srun => "[ \"$stop_asked\" = yes ] || ! job_runs",
            ScriptLauncher::Mpirun | ScriptLauncher::None => "[ \"$stop_asked\" = yes ]",
        }
    }
}

const SIGNALS: &str = r#"
# ---- Signals -------------------------------------------------------------------------------------
# TERM, INT, HUP, USR1, USR2 and XCPU ask for a stop. For each of them the ranks get USR1: all stop after the same
# step, one checkpoint is written, and the exit code is 0. This script must live until then.
program=           # the process that was started
started=0          # when
asking=            # the process that asks it again
stop_asked=no
interrupted=no     # whether a signal came while the script waited

ask_to_stop() {
    stop_asked=yes
    interrupted=yes
    [ -z "$program" ] || ask_program
}

# A launcher that has no ranks yet loses what it is to pass on: asked again while it is young.
ask_program() {
    kill -USR1 "$program" 2>/dev/null
    if [ -z "$asking" ]; then
        (while sleep 2 && is_young && kill -USR1 "$program"; do :; done) >/dev/null 2>&1 &
        asking=$!
    fi
}

is_young() { [ "$((SECONDS - started))" -lt 60 ]; }
"#;

const SECOND_SIGNAL: &str = r#"
# A second TERM or INT ends at once, without a checkpoint.
end_asked=no
ask_to_end() {
    if [ "$end_asked" = yes ]; then
        say "asked again: ending at once"
        [ -z "$program" ] || kill -ENDING "$program" 2>/dev/null
        interrupted=yes
        return
    fi
    end_asked=yes
    say "stopping after this step, with a checkpoint; a second signal ends at once"
    ask_to_stop
}
trap ask_to_stop HUP USR1 USR2 XCPU
trap ask_to_end TERM INT
"#;

const RUN: &str = r#"
# ---- The program ---------------------------------------------------------------------------------
run_program() {
    # Its own process group: a terminal's Ctrl-C then comes to this script alone, which passes it on.
    # The group is in the background, where `stty tostop` would stop it at its first line.
    trap '' TTOU
    set -m
    COMMAND </dev/null &
    program=$!
    started=$SECONDS
    set +m
    # A signal that came before its number was known has not reached it.
    [ "$stop_asked" = no ] || ask_program
    # A signal ends `wait` early; the program's own exit code is that of a wait which nothing interrupted.
    interrupted=yes
    while [ "$interrupted" = yes ]; do
        interrupted=no
        wait "$program"
        code=$?
    done
    [ -z "$asking" ] || kill "$asking" 2>/dev/null
    # A rank that does not listen yet ends by USR1 itself, a launcher that has nothing left to pass on does, too.
    if [ "$stop_asked" = yes ] && [ "$code" = 138 ] && is_young; then
        say "ended by the signal that asked it to stop"
        code=0
        program=
    fi
}
"#;

const ONCE: &str = r#"
code=0
[ "$stop_asked" = yes ] || run_program
"#;

const AGAIN: &str = r#"
# A program that fails resumes from its last checkpoint, up to the number of restarts; not after a
# stop, and not with a wrong command line.
restarts_left=RESTARTS
while true; do
    code=0
    [ "$stop_asked" = no ] || break
    run_program
    [ "$code" != 0 ] || break
    if USAGE; then
        say "exit code $code: the command line is wrong; not started again"
        code=2
        break
    elif STOPPED; then
        say "exit code $code after a signal; not started again"
        break
    elif [ "$restarts_left" = 0 ]; then
        say "exit code $code, and no restart is left"
        break
    fi
    restarts_left=$((restarts_left - 1))
    say "exit code $code: starting again from the last checkpoint, $restarts_left more restarts after this"
done
"#;

#[cfg(test)]
pub(crate) mod tests;
