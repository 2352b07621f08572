//! Answers to the flags of other programs.
//!
//! In: clap's error about an unknown argument. Out: the error with a tip that names a flag of this
//! program.

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of PyTorch's and timm's scripts, Lightning, torchrun and Ultralytics, without dashes, and
/// what to write instead.
const HABITS: &str = "\
lr base-lr max-lr init-lr lr0: --learning-rate RATE
b bs batch batch-size train-batch-size per-device-train-batch-size: --global-batch-size SAMPLES for all ranks together, or --batch-size-per-rank SAMPLES
j workers num-workers dataloader-num-workers: --loader-threads THREADS
wd decay: --weight-decay FACTOR
opt optim: --optimizer NAME
betas opt-betas adam-beta1: --beta1 FACTOR and --beta2 FACTOR
eps opt-eps adam-epsilon: --epsilon NUMBER
a arch net network backbone: --model NAME
data data-path data-root root train-dir dataset-dir: --dataset image-folder --data-dir DIR
img-size imgsz input-size crop-size train-crop-size val-crop-size: --resolution PIXELS
val-resize-size resize: --eval-resize PIXELS
gpus num-gpus n-gpus ngpu devices nproc nproc-per-node np world-size: `launch -n N -- train …`, which starts N ranks, each on a GPU of its machine
nnodes num-nodes node-rank rank local-rank dist-url dist-backend init-method master-addr: `mpirun`, `srun` or `slurm submit`, which give each rank its place
multiprocessing-distributed distributed strategy ddp: nothing: several ranks share each batch, as `launch -n N -- train …` starts them
gpu cuda use-cuda accelerator: --device cuda
cpu-only no-cuda no-accel: --device flex
amp use-amp mixed-precision bf16 precision: --dtype bf16
fp16 half: --dtype f16, or --dtype bf16, which needs no loss scaling
pretrained finetune initial-checkpoint load pretrained-weights: --weights FILE
ckpt ckpt-path resume-from resume-from-checkpoint: --resume --output-dir DIR, or --weights FILE
e evaluate eval test-only validate: `trainer eval --checkpoint DIR`
max-epochs num-epochs num-train-epochs n-epochs: --epochs EPOCHS
sched scheduler lr-scheduler lr-schedule lr-scheduler-type: --schedule KIND
lr-milestones decay-milestones lr-step-size decay-epochs lrf: --schedule multistep --milestones EPOCHS
lr-gamma decay-rate: --gamma FACTOR
lr-warmup-epochs warmup: --warmup-epochs EPOCHS
lr-warmup-decay warmup-lr: --warmup-start-factor SHARE
smoothing label-smooth: --label-smoothing SHARE
clip-grad gradient-clip-val max-grad-norm grad-clip: --clip-grad-norm NORM
accum accum-iter accumulate-grad-batches grad-accum gradient-accumulation-steps: --grad-accum-steps PASSES
ema model-ema model-ema-decay: --ema-decay SHARE
sync-bn sync-batchnorm syncbn: --batch-norm sync
cutmix-alpha: --cutmix ALPHA
mixup-alpha: --mixup ALPHA
aa auto-augment: --augment trivial, or --augment resized-crop --rand-augment MAGNITUDE
head-lr layer-decay: --learning-rate-factors PART=FACTOR
p print-freq log-interval log-every-n-steps logging-steps: --log-every-steps STEPS
output out o save-dir log-dir logdir default-root-dir project work-dir: --output-dir DIR
exp-name experiment run-name experiment-name: --name NAME
save-freq save-every save-period checkpoint-interval: --checkpoint-every-epochs EPOCHS
eval-freq val-interval check-val-every-n-epoch: --eval-every-epochs EPOCHS
early-stopping early-stopping-patience es-patience: --patience EVALUATIONS
val-split validation-split val-size val-ratio valid-frac: --val-fraction SHARE
dropout drop drop-rate: nothing: dropout is a part of the model
shuffle: nothing: each epoch has its own order
random-seed manual-seed: --seed SEED
tb tensorboard-dir: --tensorboard DIR
topk: --top CLASSES
compile torchcompile channels-last pin-mem pin-memory deterministic persistent-workers: nothing: leave it out";

/// Returns names, separated by spaces, with their answer.
fn habits() -> impl Iterator<Item = (&'static str, &'static str)> {
    HABITS.lines().filter_map(|line| line.split_once(": "))
}

/// Endings of checkpoint files.
const WEIGHTS: [&str; 8] = [
    ".pth",
    ".pt",
    ".tar",
    ".ckpt",
    ".bin",
    ".pkl",
    ".th",
    ".safetensors",
];

/// Adds a tip to an error about an argument of another program; `definitions` are those of this
/// program.
pub(super) fn explained(mut error: clap::Error, definitions: &Command) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    if let Some(tip) = tip(argument, definitions) {
        error.remove(ContextKind::SuggestedArg);
        let tip = StyledStr::from(format!("write {tip}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

fn tip(argument: &str, definitions: &Command) -> Option<String> {
    let name = argument.trim_start_matches('-');
    let name = name.split('=').next().unwrap_or(name).replace('_', "-");
    if !argument.starts_with('-') {
        let is_file = WEIGHTS
            .iter()
            .any(|ending| name.to_ascii_lowercase().ends_with(ending));
        return Some(if is_file {
            format!("--weights {argument}")
        } else {
            format!("--data-dir {argument}")
        })
        .filter(|_| is_file || argument.contains('/'));
    }
    let habit = habits().find(|(names, _)| names.split(' ').any(|habit| habit == name));
    let has = |flag: &str| {
        let commands = definitions.get_subcommands();
        commands
            .flat_map(Command::get_arguments)
            .any(|argument| argument.get_long() == Some(flag))
    };
    habit.map(|(_, tip)| tip.to_owned()).or_else(|| {
        let is_spelling = argument.contains('_') && has(&name);
        is_spelling.then(|| format!("--{name}"))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::cli::Cli;

    fn refusal(words: &str) -> String {
        let definitions = Cli::command();
        let error = definitions
            .clone()
            .try_get_matches_from(words.split(' '))
            .unwrap_err();
        explained(error, &definitions).to_string()
    }

    #[test]
    fn flags_of_other_programs_are_answered_with_those_of_this_one() {
        for (words, expected) in [
            ("train --lr 0.1", "--learning-rate RATE"),
            ("train --batch-size 256", "--global-batch-size SAMPLES"),
            ("train --batch_size=256", "--global-batch-size SAMPLES"),
            ("train -b 256", "--global-batch-size SAMPLES"),
            ("train -j8", "--loader-threads THREADS"),
            ("train --wd 1e-4", "--weight-decay FACTOR"),
            ("train --learning_rate 0.1", "write --learning-rate"),
            ("train --gpus 4", "`launch -n N -- train …`"),
            ("train /data/imagenet", "--data-dir /data/imagenet"),
            ("train --resume last.pth.tar", "--weights last.pth.tar"),
            ("eval --amp", "--dtype bf16"),
        ] {
            let text = refusal(&format!("trainer {words}"));
            assert!(
                text.contains("tip: write") && text.contains(expected),
                "{words}: {text}"
            );
        }
        let text = refusal("trainer train --epoch 3");
        assert!(text.contains("'--epochs'"), "clap's own tip stays: {text}");
    }

    #[test]
    fn every_flag_of_an_answer_exists_and_no_habit_is_a_flag_of_train() {
        let definitions = Cli::command();
        let commands = definitions.get_subcommands();
        let all: Vec<&str> = commands
            .flat_map(Command::get_arguments)
            .filter_map(|flag| flag.get_long())
            .collect();
        let train = definitions.find_subcommand("train").unwrap();
        let of_train: Vec<&str> = train
            .get_arguments()
            .filter_map(|flag| flag.get_long())
            .collect();
        let mut seen = Vec::new();
        for (names, answer) in habits() {
            for word in answer
                .split([' ', '`', ','])
                .filter_map(|word| word.strip_prefix("--"))
                .filter(|word| !word.is_empty())
            {
                assert!(all.contains(&word), "--{word}");
            }
            for name in names.split(' ') {
                assert!(!of_train.contains(&name) && !seen.contains(&name), "{name}");
                seen.push(name);
            }
        }
    }
}
