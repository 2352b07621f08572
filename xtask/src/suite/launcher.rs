//! What starts a program on several ranks: mpirun, or Slurm.
//!
//! In: a number of ranks, a program. Out: a command, and the ranks' processes once they run.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A way to start ranks, with a place for what they write.
pub(crate) trait Launcher {
    /// The program on this many ranks; the machine's cores may be fewer, or busy.
    fn on_ranks(
        &self,
        ranks: usize,
        program: &Path,
        arguments: &[String],
    ) -> Result<Command, String>;

    /// The variable in which a rank finds its number.
    fn rank_variable(&self) -> &'static str;

    /// Where runs and logs lie.
    fn folder(&self) -> &Path;

    fn trainer(&self) -> &Path;

    /// Waits until what an ended command leaves behind for a moment is gone.
    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    /// Finds the trainer's process of a rank by its arguments and its environment, as Linux shows them.
    fn process_of_rank(&self, folder: &Path, rank: usize) -> Option<u32> {
        let mark = format!("{}={rank}", self.rank_variable());
        let folder = folder.display().to_string();
        let read = |process: u32, file: &str| {
            fs::read(format!("/proc/{process}/{file}")).unwrap_or_default()
        };
        let is_meant = |process: &u32| {
            let line = read(*process, "cmdline");
            let mut words = line.split(|byte| *byte == 0);
            // The launcher's own line has the folder too, but another program in front.
            words.next() == Some(self.trainer().as_os_str().as_encoded_bytes())
                && words.any(|word| word == folder.as_bytes())
                && read(*process, "environ")
                    .split(|byte| *byte == 0)
                    .any(|entry| entry == mark.as_bytes())
        };
        let processes = fs::read_dir("/proc").ok()?;
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .find(is_meant)
    }
}
