//! The folder that is carried to a GPU machine.
//!
//! In: a built program, scripts, fixtures. Out: `target/gpu-check`. Invariant: everything that runs there is in it, flat.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::at::at;
use crate::cargo;
use crate::cuda::Built;
use cluster::failure::{Failure, Outcome};
use cluster::process;

/// What is started there.
pub(super) const ENTRY: &str = "gpu-check.sh";

/// Of `peers/`.
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
/// The images of the known answer: the first 1,017 records of a label and 3,072 pixels.
const IMAGES_BYTES: usize = 1017 * 3073;

/// The files of the check `known-answer`.
#[derive(Debug)]
pub(super) struct KnownAnswer {
    weights: PathBuf,
    images: PathBuf,
}

impl KnownAnswer {
    /// In a folder; the images also in the folder of CIFAR-10's release below it.
    pub(super) fn find(folder: &str) -> Outcome<Self> {
        let folder = Path::new(folder);
        let weights = folder.join(WEIGHTS);
        let images = [
            folder.join(IMAGES),
            folder.join("cifar-10-batches-bin").join(IMAGES),
        ];
        match (
            weights.is_file(),
            images.into_iter().find(|path| path.is_file()),
        ) {
            (true, Some(images)) => Ok(Self { weights, images }),
            (has_weights, _) => Err(Failure::Usage(format!(
                "--data-dir: expected {} in {}, got no such file; name another folder, or leave it out with the check known-answer",
                if has_weights { IMAGES } else { WEIGHTS },
                folder.display()
            ))),
        }
    }
}

/// Packs the folder anew.
pub(super) fn pack(built: &Built, known_answer: Option<&KnownAnswer>) -> Outcome<PathBuf> {
    let folder = cargo::root().join("target/gpu-check");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at(&folder))?;
    }
    let data = folder.join("data");
    fs::create_dir_all(&data).map_err(at(&data))?;
    for script in SCRIPTS {
        copy(&cargo::root().join("peers").join(script), &folder)?;
    }
    copy(&cargo::root().join(FIXTURE), &data)?;
    if let Some(KnownAnswer { weights, images }) = known_answer {
        copy(weights, &data)?;
        let bytes = fs::read(images).map_err(at(images))?;
        let path = data.join(IMAGES);
        fs::write(&path, &bytes[..bytes.len().min(IMAGES_BYTES)]).map_err(at(&path))?;
    }
    copy(&built.stand_ins, &folder)?;
    let program = folder.join("trainer");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&program).arg(&built.trainer);
    process::run(strip)?;
    let mut compress = Command::new("xz");
    compress.args(["-T0", "-6"]).arg(&program);
    process::run(compress)?;
    let size = |name: &str| {
        fs::metadata(folder.join(name)).map_or(0.0, |file| file.len() as f64 / 1024.0 / 1024.0)
    };
    println!(
        "trainer.xz: {:.1} MiB, libllvm-absent.so: {:.1} MiB",
        size("trainer.xz"),
        size("libllvm-absent.so")
    );
    Ok(folder)
}

fn copy(file: &Path, folder: &Path) -> Outcome {
    let name = file
        .file_name()
        .expect("the paths of this file end in names");
    fs::copy(file, folder.join(name))
        .map(drop)
        .map_err(at(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_to_be_packed_is_there_and_no_script_is_forgotten() {
        let peers = cargo::root().join("peers");
        for script in SCRIPTS {
            assert!(peers.join(script).is_file(), "{script}");
        }
        assert!(cargo::root().join(FIXTURE).is_file());
        for entry in fs::read_dir(peers.join("gpu")).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            let is_packed = SCRIPTS.contains(&format!("gpu/{name}").as_str());
            assert!(
                is_packed || name.starts_with("test_") || name.starts_with("__"),
                "{name} is not packed"
            );
        }
    }

    #[test]
    fn what_a_packed_script_imports_is_packed_too() {
        let peers = cargo::root().join("peers");
        let packed = SCRIPTS.map(|script| script.rsplit('/').next().unwrap());
        for script in SCRIPTS.iter().filter(|script| script.ends_with(".py")) {
            let text = fs::read_to_string(peers.join(script)).unwrap();
            let imported = text.lines().filter_map(|line| {
                let line = line.trim_start();
                line.strip_prefix("import ")
                    .or_else(|| line.strip_prefix("from "))?
                    .split([' ', ',', '.'])
                    .next()
            });
            for module in imported {
                let file = format!("{module}.py");
                let is_ours =
                    peers.join(&file).is_file() || peers.join("gpu").join(&file).is_file();
                assert!(
                    !is_ours || packed.contains(&file.as_str()),
                    "{script} imports {file}"
                );
            }
        }
    }

    #[test]
    fn a_known_answer_that_is_not_there_is_refused_by_the_missing_file() {
        let folder =
            std::env::temp_dir().join(format!("lockstep-xtask-{}-known", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let refusal = |folder: &Path| {
            KnownAnswer::find(&folder.to_string_lossy())
                .unwrap_err()
                .to_string()
        };
        assert!(refusal(&folder).contains(WEIGHTS));
        fs::write(folder.join(WEIGHTS), "").unwrap();
        assert!(refusal(&folder).contains(IMAGES));
        fs::write(folder.join(IMAGES), "").unwrap();
        assert!(KnownAnswer::find(&folder.to_string_lossy()).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }
}
