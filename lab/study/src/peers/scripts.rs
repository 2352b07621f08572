//! The scripts and requirements of the other frameworks, which are part of this program.
//!
//! In: a folder. Out: the files of the repository's `lab/peers/` in it.
//! Invariant: a study keeps the scripts that it ran next to its results.

use std::fs;
use std::path::{Path, PathBuf};

use cluster::failure::{Outcome, failed};
use cluster::run_directory;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../peers/", $name)))),*]
    };
}

const FILES: [(&str, &str); 19] = files![
    "accuracy.py",
    "architecture.py",
    "images.py",
    "install_horovod.py",
    "jax_xla.py",
    "job.py",
    "measure.py",
    "mxnet_gluon.py",
    "pytorch_eager.py",
    "pytorch_imagenet.py",
    "ranks.py",
    "requirements/horovod.txt",
    "requirements/jax.txt",
    "requirements/mxnet.txt",
    "requirements/pytorch.txt",
    "requirements/tensorflow.txt",
    "resnet.py",
    "run.py",
    "tensorflow_keras.py",
];

#[cfg(test)]
pub(super) fn all() -> Vec<&'static str> {
    FILES.iter().map(|(_, text)| *text).collect()
}

/// The scripts in a folder.
#[derive(Debug)]
pub(super) struct Scripts(PathBuf);

impl Scripts {
    /// Writes the scripts into a study's folder, or finds them there.
    ///
    /// # Errors
    /// The folder has other scripts: its results were made with them.
    pub(super) fn of_study(folder: &Path) -> Outcome<Self> {
        for (name, text) in FILES {
            let file = folder.join(name);
            match fs::read(&file) {
                Ok(existing) if existing == text.as_bytes() => {}
                Ok(_) => {
                    return Err(failed!(
                        "{}: not the script of this program, and earlier results were made with it. Choose another \
                         --output, or measure again with --again.",
                        file.display()
                    ));
                }
                Err(_) => run_directory::write(&file, text)?,
            }
        }
        Ok(Scripts(folder.to_owned()))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Returns the pinned packages of an environment.
pub(super) fn requirements(name: &str) -> &'static str {
    let file = format!("requirements/{name}.txt");
    FILES
        .iter()
        .find(|(known, _)| *known == file)
        .map_or("", |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts that a comparison does not run.
    const OTHERS: [&str; 3] = ["networks.py", "onednn_layers.py", "ops.py"];

    #[test]
    fn every_script_and_list_of_the_repository_is_part_of_the_program() {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers");
        let names = |folder: &str, extension: &str| -> Vec<String> {
            let entries = fs::read_dir(peers.join(folder))
                .unwrap()
                .map(|entry| entry.unwrap().file_name());
            let names = entries.map(|name| format!("{folder}{}", name.to_str().unwrap()));
            names
                .filter(|name| name.ends_with(extension) && !OTHERS.contains(&name.as_str()))
                .collect()
        };
        let mut expected = [names("", ".py"), names("requirements/", ".txt")].concat();
        expected.sort();
        assert_eq!(FILES.map(|(name, _)| name.to_owned()).to_vec(), expected);
    }

    #[test]
    fn a_study_is_not_resumed_with_other_scripts() {
        let folder = tempfile::tempdir().unwrap();
        Scripts::of_study(folder.path()).unwrap();
        let scripts = Scripts::of_study(folder.path()).unwrap();
        fs::write(scripts.path("run.py"), "print('mine')\n").unwrap();
        let text = Scripts::of_study(folder.path()).unwrap_err().to_string();
        assert!(
            text.contains("run.py: not the script of this program") && text.contains("--again"),
            "{text}"
        );
        assert_eq!(
            fs::read_to_string(scripts.path("run.py")).unwrap(),
            "print('mine')\n"
        );
    }

    #[test]
    fn written_scripts_are_valid_for_the_python_that_is_here() {
        let Some(python) = cluster::probe::program("python3") else {
            println!("skipped: no python3");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let scripts = Scripts::of_study(folder.path()).unwrap();
        let files = FILES
            .iter()
            .filter(|(name, _)| name.ends_with(".py"))
            .map(|(name, _)| scripts.path(name));
        // Parsed only: compiling would leave files behind.
        let script =
            "import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]";
        let output = std::process::Command::new(python)
            .args(["-c", script])
            .args(files)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
