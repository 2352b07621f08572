//! Tests of the work that ranks share when they open a data set.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use datasets::{DatasetError, ImageSamples, OnBadImage};
use distributed::run_ranks;

use super::*;

/// A data set of one image, which counts reads of files for its checksum.
struct Counted {
    num_readings: Arc<AtomicUsize>,
    checksum: OnceLock<String>,
    reads_files: bool,
}

impl ImageDataset for Counted {
    fn name(&self) -> &str {
        "counted"
    }

    fn len(&self) -> usize {
        1
    }

    fn image_shape(&self) -> ImageShape {
        ImageShape {
            height: 1,
            width: 1,
            channels: 1,
        }
    }

    fn class_names(&self) -> &[String] {
        &[]
    }

    fn label(&self, _index: usize) -> usize {
        0
    }

    fn read_image(&self, _index: usize, _pixels: &mut [u8]) -> Result<(), DatasetError> {
        Ok(())
    }

    fn checksum(&self) -> String {
        let read = || {
            format!(
                "reading {}",
                self.num_readings.fetch_add(1, Ordering::SeqCst)
            )
        };
        self.checksum.get_or_init(read).clone()
    }

    fn checksum_reads_files(&self) -> bool {
        self.reads_files && self.checksum.get().is_none()
    }

    fn adopt_checksum(&self, checksum: &str) {
        self.checksum.get_or_init(|| checksum.to_owned());
    }
}

/// Returns the checksum of the train split on each of three ranks of one node, some without data,
/// and the number of reads.
fn checksums_on_ranks(
    reads_files: bool,
    without_data: Option<usize>,
) -> (Vec<Option<String>>, usize) {
    checksums_of([Path::new("/"); 3], reads_files, without_data)
}

/// Does the same as [`checksums_on_ranks`], from these folders.
fn checksums_of(
    folders: [&Path; 3],
    reads_files: bool,
    without_data: Option<usize>,
) -> (Vec<Option<String>>, usize) {
    let num_readings = Arc::new(AtomicUsize::new(0));
    let checksums = run_ranks(3, |communicator| {
        let split = || -> Arc<dyn ImageDataset> {
            Arc::new(Counted {
                num_readings: num_readings.clone(),
                checksum: OnceLock::new(),
                reads_files,
            })
        };
        let train = split();
        // The test split is the same, since only the train split is counted.
        let normalization = Normalization::uniform(1);
        let data = DatasetSplits::of_two(train.clone(), train, normalization);
        let data = ImageSamples::splits(data, false);
        let data = (Some(communicator.rank()) != without_data).then_some(data);
        let splits = data
            .as_ref()
            .map_or(vec![], |data| vec![&data.train, data.evaluated().unwrap()]);
        share_checksums(&splits, Some(folders[communicator.rank()]), &communicator).unwrap();
        data.map(|data| data.train.checksum())
    });
    (checksums, num_readings.load(Ordering::SeqCst))
}

#[test]
fn the_first_rank_of_a_node_reads_the_files_for_the_others() {
    let (checksums, num_readings) = checksums_on_ranks(true, None);
    assert_eq!(
        (num_readings, checksums),
        (1, vec![Some("reading 0".to_owned()); 3])
    );
}

#[test]
fn a_rank_that_reads_another_folder_digests_it_itself() {
    let [same, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let link = same.path().join("link");
    std::os::unix::fs::symlink(same.path(), &link).unwrap();
    let (checksums, num_readings) = checksums_of([same.path(), other.path(), &link], true, None);
    assert_eq!(num_readings, 2);
    assert!(
        checksums[0] == checksums[2] && checksums[0] != checksums[1],
        "{checksums:?}"
    );
}

#[test]
fn what_every_rank_has_in_memory_it_digests_itself() {
    assert_eq!(checksums_on_ranks(false, None).1, 3);
}

#[test]
fn without_the_first_rank_s_data_the_others_read_for_themselves() {
    let (checksums, num_readings) = checksums_on_ranks(true, Some(0));
    assert_eq!((num_readings, checksums.iter().flatten().count()), (2, 2));
}

#[test]
fn ranks_share_their_node_s_memory_and_processors() {
    let nodes = ["a", "a", "a", "b"].map(String::from);
    let files = ImageFiles {
        data_dir: PathBuf::new(),
        size: ImageSize::Square { image_size: 8 },
        on_bad_image: OnBadImage::Skip,
        eval_split: None,
    };
    let [of_three, alone] =
        [0, 3].map(|rank| read_config(&files, &Topology::from_nodes(rank, &nodes)).unwrap());
    assert_eq!(
        alone.memory_limit_bytes,
        ReadConfig::new(Sizing::square(8)).memory_limit_bytes
    );
    assert_eq!(of_three.memory_limit_bytes, alone.memory_limit_bytes / 3);
    assert!((1..=alone.num_threads).contains(&of_three.num_threads));
    assert_eq!(
        (of_three.sizing, of_three.on_bad_image),
        (Sizing::square(8), OnBadImage::Skip)
    );
}

/// Black images of two classes, with these labels.
struct Labelled(Vec<usize>, [String; 2]);

impl ImageDataset for Labelled {
    fn name(&self) -> &str {
        "own train"
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn image_shape(&self) -> ImageShape {
        ImageShape {
            height: 1,
            width: 1,
            channels: 3,
        }
    }
    fn class_names(&self) -> &[String] {
        &self.1
    }
    fn label(&self, index: usize) -> usize {
        self.0[index]
    }
    fn read_image(&self, _: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        pixels.fill(0);
        Ok(())
    }
    fn checksum(&self) -> String {
        String::new()
    }
}

#[test]
fn a_label_beyond_the_classes_of_a_programs_data_set_is_refused_with_its_sample() {
    let split = |labels: &[usize]| Labelled(labels.to_vec(), ["cat".to_owned(), "dog".to_owned()]);
    expect_labels(&split(&[0, 1, 1])).unwrap();
    let text = expect_labels(&split(&[0, 1, 2, 7]))
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "own train: sample 2: expected a label below 2, the number of class names, got 2"
    );
}
