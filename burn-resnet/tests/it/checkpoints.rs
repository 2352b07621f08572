//! PyTorch checkpoints: the tensors are found whatever else is in the file.

use std::fs;
use std::path::Path;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use burn_resnet::{Head, Loaded, WeightsError, load_weights, load_weights_with, save_safetensors};
use safetensors::SafeTensors;

use crate::support::{tensors, values};

#[derive(Module, Debug)]
struct Network {
    stem: Linear,
    head: Linear,
}

fn network() -> Network {
    let layer = |outputs| LinearConfig::new(2, outputs).init(&Device::flex());
    Network {
        stem: layer(2),
        head: layer(3),
    }
}

/// The names and shapes of the tensors of [`Network`]. In the file of [`archive`] they follow each
/// other, and element `i` is `i`.
const TENSORS: [(&str, &[usize]); 4] = [
    ("stem.weight", &[2, 2]),
    ("stem.bias", &[2]),
    ("head.weight", &[3, 2]),
    ("head.bias", &[3]),
];

fn text(text: &str) -> Vec<u8> {
    [
        b"X",
        &(text.len() as u32).to_le_bytes()[..],
        text.as_bytes(),
    ]
    .concat()
}

fn int(number: usize) -> Vec<u8> {
    [b"J", &(number as u32).to_le_bytes()[..]].concat()
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(".to_vec(), items.concat(), b"t".to_vec()].concat()
}

fn dict(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let items: Vec<u8> = items
        .iter()
        .flat_map(|(key, value)| [text(key), value.clone()].concat())
        .collect();
    [b"}(".to_vec(), items, b"u".to_vec()].concat()
}

fn call(function: &str, arguments: &[Vec<u8>]) -> Vec<u8> {
    let (module, name) = function.rsplit_once('.').unwrap();
    [
        format!("c{module}\n{name}\n").into_bytes(),
        tuple(arguments),
        b"R".to_vec(),
    ]
    .concat()
}

/// Returns a view of the only storage.
fn view(class: &str, offset: usize, shape: &[usize], stride: &[usize]) -> Vec<u8> {
    let class = format!("ctorch\n{class}\n").into_bytes();
    let storage = [
        tuple(&[text("storage"), class, text("0"), text("cpu"), int(15)]),
        b"Q".to_vec(),
    ]
    .concat();
    let dims = |dims: &[usize]| tuple(&dims.iter().map(|&dim| int(dim)).collect::<Vec<_>>());
    let arguments = [
        storage,
        int(offset),
        dims(shape),
        dims(stride),
        b"\x89".to_vec(),
        b"N".to_vec(),
    ];
    call("torch._utils._rebuild_tensor_v2", &arguments)
}

/// Returns a matrix of two columns or a vector, row-major.
fn floats(offset: usize, shape: &[usize]) -> Vec<u8> {
    let stride: &[usize] = if shape.len() == 2 { &[2, 1] } else { &[1] };
    view("FloatStorage", offset, shape, stride)
}

/// Returns the tensors of [`Network`] under this prefix, and these additional items.
fn weights(prefix: &str, further: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut offset = 0;
    let names = TENSORS.map(|(name, _)| format!("{prefix}{name}"));
    let own = TENSORS.iter().zip(&names).map(|((_, shape), name)| {
        let tensor = floats(offset, shape);
        offset += shape.iter().product::<usize>();
        (name.as_str(), tensor)
    });
    dict(&own.chain(further.iter().cloned()).collect::<Vec<_>>())
}

/// Returns a zip archive as `torch.save` writes it to a file of this name. The bytes of each entry
/// start at a multiple of 64.
fn archive(name: &str, pickle: &[u8]) -> Vec<u8> {
    let storage: Vec<u8> = (0..15_u8)
        .flat_map(|number| f32::from(number).to_le_bytes())
        .collect();
    let pickle = [b"\x80\x02", pickle, b"."].concat();
    let mut file = Vec::new();
    let mut directory = Vec::new();
    let entries: [(&str, &[u8]); 3] = [
        ("data.pkl", &pickle),
        ("byteorder", b"little"),
        ("data/0", &storage),
    ];
    for (entry, bytes) in entries {
        let entry = format!("{name}/{entry}");
        let start = file.len();
        let padding = (64 - (start + 30 + entry.len() + 4) % 64) % 64;
        let sizes = [0, bytes.len() as u32, bytes.len() as u32]
            .map(u32::to_le_bytes)
            .concat();
        let name_len = (entry.len() as u16).to_le_bytes();
        file.extend([b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0", &sizes[..], &name_len].concat());
        file.extend(((padding + 4) as u16).to_le_bytes());
        file.extend(
            [
                entry.as_bytes(),
                b"FB",
                &(padding as u16).to_le_bytes(),
                &vec![b'Z'; padding],
                bytes,
            ]
            .concat(),
        );
        directory.extend(
            [
                b"PK\x01\x02\0\0\0\0\x08\x08\0\0\0\0\0\0",
                &sizes[..],
                &name_len,
                &[0; 12],
            ]
            .concat(),
        );
        directory.extend((start as u32).to_le_bytes());
        directory.extend(entry.as_bytes());
    }
    let start = file.len() as u32;
    let len = directory.len() as u32;
    file.extend(directory);
    let ends = [start + len, len, start].map(u32::to_le_bytes);
    file.extend(
        [
            b"PK\x05\x06\0\0\0\0\x03\0\x03\0",
            &ends[1][..],
            &ends[2],
            b"\0\0",
        ]
        .concat(),
    );
    file
}

fn loaded_from(path: &Path, head: Head) -> Result<(Network, Loaded), WeightsError> {
    load_weights_with(network(), path, head)
}

/// Loads a checkpoint with this pickle.
fn loaded(pickle: &[u8], head: Head) -> Result<(Network, Loaded), WeightsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pth");
    fs::write(&path, archive("archive", pickle)).unwrap();
    loaded_from(&path, head)
}

fn refusal(pickle: &[u8], head: Head) -> String {
    loaded(pickle, head).unwrap_err().to_string()
}

/// Asserts the values of [`TENSORS`] in burn's layout.
fn expect_values(network: &Network) {
    let of = |layer: &Linear| {
        [
            layer.weight.val().transpose().reshape([-1]),
            layer.bias.as_ref().unwrap().val(),
        ]
    };
    let found: Vec<f32> = of(&network.stem)
        .into_iter()
        .chain(of(&network.head))
        .flat_map(values)
        .collect();
    assert_eq!(found, (0..15_u8).map(f32::from).collect::<Vec<_>>());
}

#[test]
fn a_checkpoint_is_read_whatever_the_length_and_ending_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for len in 1..=120 {
        let ending = [".pth", ".PTH", ".pth.tar", ".ckpt", ".bin", ".pkl", ""][len % 7];
        let name = "n".repeat(len);
        let path = folder.path().join(format!("{name}{ending}"));
        fs::write(&path, archive(&name, &weights("", &[]))).unwrap();
        let (network, loaded) =
            loaded_from(&path, Head::OfFile).unwrap_or_else(|error| panic!("{error}"));
        expect_values(&network);
        assert_eq!((loaded.key, loaded.unused), (None, vec![]), "{len}");
    }
    let path = folder.path().join("weights.bin");
    save_safetensors(&network(), &path).unwrap();
    loaded_from(&path, Head::OfFile).unwrap();
}

#[test]
fn tensors_are_found_beside_and_within_any_objects() {
    let own = weights("", &[]);
    let stray = floats(0, &[1]);
    let sparse = call(
        "torch._utils._rebuild_sparse_tensor",
        &[tuple(&[stray.clone(), stray.clone()])],
    );
    let deque = call(
        "collections.deque",
        &[[b"](".to_vec(), stray.clone(), b"e".to_vec()].concat()],
    );
    let defaultdict = [
        call("collections.defaultdict", &[b"cbuiltins\nlist\n".to_vec()]),
        text("a"),
        stray.clone(),
        b"s".to_vec(),
    ];
    let object =
        |state: Vec<u8>| [b"c__main__\nAny\n)\x81".to_vec(), state, b"b".to_vec()].concat();
    let keyed_by_tuple = [
        b"}".to_vec(),
        tuple(&[int(1)]),
        stray.clone(),
        b"s".to_vec(),
    ]
    .concat();
    for beside in [
        sparse,
        deque,
        defaultdict.concat(),
        object(dict(&[("t", stray.clone())])),
        keyed_by_tuple,
        b"G01234567".to_vec(),
    ] {
        for dictionary in [
            dict(&[("other", beside.clone()), ("state_dict", own.clone())]),
            weights("", &[("other.x", beside)]),
        ] {
            expect_values(&loaded(&dictionary, Head::OfFile).unwrap().0);
        }
    }
    // A module with its tables of parameters and modules, an object with a module, and an
    // `OrderedDict` with attributes.
    let table = |name: &'static str, items: Vec<u8>| (name, items);
    let module = |parameters: Vec<u8>, modules: Vec<u8>| {
        let buffers = dict(&[]);
        object(dict(&[
            table("_parameters", parameters),
            table("_buffers", buffers),
            table("_modules", modules),
        ]))
    };
    let tensor = |index: usize, offset| floats(offset, TENSORS[index].1);
    let layer = |first, offset, len| {
        let parameters = dict(&[
            ("weight", tensor(first, offset)),
            ("bias", tensor(first + 1, offset + len)),
        ]);
        module(parameters, dict(&[]))
    };
    let whole = module(
        dict(&[]),
        dict(&[("stem", layer(0, 0, 4)), ("head", layer(2, 6, 6))]),
    );
    let ordered = [
        call("collections.OrderedDict", &[]),
        own[1..].to_vec(),
        dict(&[("_metadata", dict(&[]))]),
        b"b".to_vec(),
    ]
    .concat();
    for (pickle, key) in [
        (whole.clone(), None),
        (dict(&[("model", whole.clone())]), Some("model")),
        (object(dict(&[("ema", whole)])), Some("ema")),
        (ordered, None),
    ] {
        let (network, loaded) = loaded(&pickle, Head::OfFile).unwrap();
        expect_values(&network);
        assert_eq!(loaded.key.as_deref(), key);
    }
}

#[test]
fn prefixes_are_taken_off_and_other_tensors_are_named() {
    let stray = || floats(0, &[1]);
    for prefix in [
        "module.",
        "model.",
        "backbone.",
        "module.encoder_q.",
        "_orig_mod.module.",
    ] {
        let (network, _) =
            loaded(&dict(&[("state_dict", weights(prefix, &[]))]), Head::OfFile).unwrap();
        expect_values(&network);
    }
    let counters = [
        "n_averaged",
        "stem.total_ops",
        "total_params",
        "bn.num_batches_tracked",
    ];
    let further: Vec<_> = counters
        .iter()
        .chain(&["aux.weight"])
        .map(|name| (*name, stray()))
        .collect();
    let (_, found) = loaded(&weights("", &further), Head::OfFile).unwrap();
    assert_eq!(found.unused, ["aux.weight"]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pth");
    fs::write(&path, archive("a", &weights("", &further))).unwrap();
    let text = load_weights(network(), &path).unwrap_err().to_string();
    assert!(text.contains("unexpected [aux.weight]"), "{text}");
}

#[test]
fn a_head_of_another_size_or_name_is_an_error_of_its_own_and_left_out_where_the_model_keeps_its_own()
 {
    let with_head = |name: &str, size: usize| {
        let stem = ("stem.weight", floats(0, &[2, 2]));
        let bias = ("stem.bias", floats(4, &[2]));
        dict(&[stem, bias, (name, floats(0, &[size, 2]))])
    };
    let ten = with_head("fc.weight", 5);
    let renamed = loaded(&ten, Head::OfFile).unwrap_err();
    assert!(matches!(renamed, WeightsError::Head { .. }), "{renamed}");
    let (_, found) = loaded(&ten, Head::Own).unwrap();
    assert_eq!(
        (found.taken.len(), found.kept.len(), found.unused),
        (2, 2, vec!["fc.weight".to_owned()])
    );

    let text = refusal(&with_head("head.weight", 5), Head::OfFile);
    assert!(
        text.contains("head.weight: expected [3, 2], got [5, 2]"),
        "as in the file: {text}"
    );
    let no_stem = dict(&[("head.bias", floats(12, &[3]))]);
    let text = refusal(&no_stem, Head::Own);
    assert!(text.contains("missing [stem.weight, stem.bias]"), "{text}");
}

#[test]
fn views_with_strides_are_gathered_and_tensors_without_are_named() {
    let with_stem = |stem: Vec<u8>| {
        let mut pickle = weights("", &[]);
        pickle.truncate(pickle.len() - 1);
        [pickle, text("stem.weight"), stem, b"u".to_vec()].concat()
    };
    let (network, _) = loaded(
        &with_stem(view("FloatStorage", 1, &[2, 2], &[1, 3])),
        Head::OfFile,
    )
    .unwrap();
    assert_eq!(
        values(network.stem.weight.val().transpose().reshape([-1])),
        [1.0, 4.0, 2.0, 5.0]
    );
    let sparse = call("torch._utils._rebuild_sparse_tensor", &[floats(0, &[1])]);
    for (stem, expected) in [
        (
            sparse,
            "stem.weight: expected a dense tensor, got torch._utils._rebuild_sparse_tensor",
        ),
        (
            view("ComplexFloatStorage", 0, &[2, 2], &[2, 1]),
            "expected a dense tensor",
        ),
        (floats(13, &[2, 2]), "of a storage of 60"),
    ] {
        let text = refusal(&with_stem(stem), Head::OfFile);
        assert!(text.contains(expected), "{text}");
    }
}

/// One of several networks, as in a program that chooses the network by a flag.
#[derive(Module, Debug)]
enum AnyNetwork {
    Small(Network),
    #[allow(dead_code, reason = "an enum of one variant is no choice")]
    Single(Linear),
}

#[derive(Module, Debug)]
struct Holder {
    network: AnyNetwork,
}

#[test]
fn a_variant_of_an_enum_has_no_part_in_the_names_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let holder = || Holder {
        network: AnyNetwork::Small(network()),
    };
    let written = holder();
    save_safetensors(&written, &path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let mut names: Vec<String> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .names()
        .into_iter()
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["head.bias", "head.weight", "stem.bias", "stem.weight"]
    );
    assert_eq!(
        tensors(&load_weights(holder(), &path).unwrap()),
        tensors(&written)
    );
    fs::write(&path, archive("a", &weights("module.", &[]))).unwrap();
    let Holder {
        network: AnyNetwork::Small(read),
    } = load_weights(holder(), &path).unwrap()
    else {
        panic!("the variant changed")
    };
    expect_values(&read);
}

#[test]
fn files_that_are_often_taken_for_weights_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pth");
    for (bytes, expected) in [
        (
            &b"version https://git-lfs.github.com/spec/v1\n"[..],
            "git lfs pull",
        ),
        (b"<!DOCTYPE html>", "web page"),
        (b"\x1f\x8b\x08", "gunzip"),
        (b"\x80\x02}q\0.", "expected tensors by name, got none"),
        (b"PK\x03\x04 cut off", "the file is cut off"),
        (
            b"\xff\xd8 an image",
            "expected safetensors, a zip archive or a pickle",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        let text = loaded_from(&path, Head::OfFile).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    let two = dict(&[
        ("student", weights("", &[])),
        ("teacher", dict(&[("a", weights("", &[]))])),
    ]);
    assert_eq!(
        loaded(&two, Head::OfFile).unwrap().1.key.as_deref(),
        Some("student"),
        "one network under two names"
    );
}
