//! `cargo xtask gpu-check`: a folder that checks and measures a GPU machine, made on any machine.
//!
//! In: the workspace, files outside it. Out: `target/gpu-check`, which needs bash and a python3
//! with PyTorch. Invariant: the folder contains everything that runs from it; its scripts are
//! copies from `lab/peers/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::process;

use crate::at;
use crate::cargo;
use crate::cuda::{self, Built};
use crate::program;
use crate::setup;

const DETAILS: &str = "\
Builds the trainer for CUDA without LLVM, as `test --only cuda` does (about 25 minutes on 2 cores if
nothing is compiled yet), and packs it with the scripts of lab/peers/gpu into target/gpu-check. With a GPU
it runs them; otherwise copy the folder to a machine with one and run ./gpu-check.sh there: eight
minutes at most, four with --quick. docs/gpu.md explains the output. --data-dir names a folder with
resnet20-12fca82f.th and CIFAR-10's test_batch.bin, for the check known-answer.";

const ENTRY: &str = "gpu-check.sh";

/// Scripts below `lab/peers/`.
const SCRIPTS: [&str; 13] = [
    "gpu/gpu-check.sh",
    "gpu/gpu_check.py",
    "gpu/arithmetic.py",
    "gpu/cache.py",
    "gpu/peer.py",
    "gpu/place.py",
    "gpu/processes.py",
    "gpu/pytorch_gpu.py",
    "gpu/table.py",
    "architecture.py",
    "job.py",
    "pytorch_eager.py",
    "pytorch_imagenet.py",
];

/// PyTorch's numbers for the check `golden`.
const FIXTURE: &str = "burn-resnet/tests/golden/resnet8.safetensors";

const WEIGHTS: &str = "resnet20-12fca82f.th";
const IMAGES: &str = "test_batch.bin";
/// Images of the known answer: the first 1,017 records of a label and 3,072 pixels.
const IMAGES_BYTES: usize = 1017 * 3073;

/// Flags of `cargo xtask gpu-check`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct GpuCheckArgs {
    /// Check only ResNet-20, without torch.compile
    #[arg(long)]
    quick: bool,
    /// Folder with published weights and images to pack
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    installing: Installing,
}

impl GpuCheckArgs {
    pub(crate) fn run(&self) -> Outcome {
        let known_answer = self.data_dir.as_deref().map(known_answer).transpose()?;
        setup::run(self.installing)?;
        let built = cuda::build()?;
        let glibc = program::glibc(&built.trainer)?;
        let folder = pack(&built, known_answer)?;
        let shown = folder.display();
        println!("{shown} packed; the program needs glibc {glibc} or newer");
        if !cuda::has_gpu() {
            println!("no GPU here: copy the folder to a machine with one and run ./{ENTRY} there");
            return Ok(());
        }
        let mut command = Command::new(folder.join(ENTRY));
        command.current_dir(&folder);
        command.args(self.quick.then_some("--quick"));
        process::run(command)
    }
}

/// Returns the files of the check `known-answer`: weights and images.
fn known_answer(folder: &Path) -> Outcome<[PathBuf; 2]> {
    let weights = folder.join(WEIGHTS);
    let unpacked = folder.join("cifar-10-batches-bin").join(IMAGES);
    let images = match unpacked.is_file() {
        true => unpacked,
        false => folder.join(IMAGES),
    };
    for path in [&weights, &images] {
        if !path.is_file() {
            return Err(Failure::Usage(format!(
                "--data-dir: no file {}. Name another folder, or remove --data-dir and with it the check known-answer",
                path.display()
            )));
        }
    }
    Ok([weights, images])
}

/// Makes the folder from scratch.
fn pack(built: &Built, known_answer: Option<[PathBuf; 2]>) -> Outcome<PathBuf> {
    let folder = cargo::root().join("target/gpu-check");
    let _ = fs::remove_dir_all(&folder);
    let data = folder.join("data");
    fs::create_dir_all(&data).map_err(at(&data))?;
    for script in SCRIPTS {
        copy(&cargo::root().join("lab/peers").join(script), &folder)?;
    }
    copy(&cargo::root().join(FIXTURE), &data)?;
    if let Some([weights, images]) = known_answer {
        copy(&weights, &data)?;
        let bytes = fs::read(&images).map_err(at(&images))?;
        let path = data.join(IMAGES);
        fs::write(&path, &bytes[..bytes.len().min(IMAGES_BYTES)]).map_err(at(&path))?;
    }
    copy(&built.stubs, &folder)?;
    let program = folder.join("trainer");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&program).arg(&built.trainer);
    process::run(strip)?;
    let mut compress = Command::new("xz");
    compress.args(["-T0", "-6"]).arg(&program);
    process::run(compress)?;
    Ok(folder)
}

fn copy(file: &Path, folder: &Path) -> Outcome {
    let copied = fs::copy(file, folder.join(file.file_name().unwrap_or_default()));
    copied.map(drop).map_err(at(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> PathBuf {
        cargo::root().join("lab/peers")
    }

    #[test]
    fn the_scripts_pass_their_own_tests() {
        let is_new = "import sys; assert sys.version_info >= (3, 9)";
        if process::answer("python3", &["-c", is_new]).is_none() {
            println!("SKIPPED: no python3 of 3.9 or newer");
            return;
        }
        let mut command = Command::new("python3");
        command.args(["-B", "-W", "error", "-m", "unittest"]);
        let output = command.current_dir(peers().join("gpu")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn the_shell_script_refuses_what_it_cannot_use() {
        let script = peers().join("gpu").join(ENTRY);
        for words in [&["--python"][..], &["--python", "/nonexistent/python"]] {
            let output = Command::new("bash")
                .arg(&script)
                .args(words)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(2), "{words:?}");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("python"), "{words:?}");
        }
    }

    #[test]
    fn every_file_to_pack_exists_and_no_script_is_forgotten() {
        for script in SCRIPTS {
            assert!(peers().join(script).is_file(), "{script}");
        }
        assert!(cargo::root().join(FIXTURE).is_file());
        for entry in fs::read_dir(peers().join("gpu")).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            let is_packed = SCRIPTS.contains(&format!("gpu/{name}").as_str());
            let is_test = name.starts_with("test_") || name.starts_with("__");
            assert!(is_packed || is_test, "{name} is not packed");
        }
    }

    #[test]
    fn what_a_packed_script_imports_is_packed_too() {
        let packed = SCRIPTS.map(|script| script.rsplit('/').next().unwrap());
        for script in SCRIPTS.iter().filter(|script| script.ends_with(".py")) {
            let text = fs::read_to_string(peers().join(script)).unwrap();
            for line in text.lines().map(str::trim_start) {
                let imported = line.strip_prefix("import ").or(line.strip_prefix("from "));
                let module = imported.and_then(|rest| rest.split([' ', ',', '.']).next());
                let file = format!("{}.py", module.unwrap_or_default());
                let folders = [peers(), peers().join("gpu")];
                let is_internal = folders.iter().any(|folder| folder.join(&file).is_file());
                let is_packed = packed.contains(&file.as_str());
                assert!(!is_internal || is_packed, "{script} imports {file}");
            }
        }
    }

    #[test]
    fn a_missing_file_of_the_known_answer_is_named() {
        let folder =
            std::env::temp_dir().join(format!("lockstep-xtask-{}-known", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let error = || known_answer(&folder).unwrap_err().to_string();
        assert!(error().contains(WEIGHTS));
        fs::write(folder.join(WEIGHTS), "").unwrap();
        assert!(error().contains(IMAGES));
        fs::write(folder.join(IMAGES), "").unwrap();
        assert!(known_answer(&folder).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }
}
