//! Official class names in label order, for copies of the data without a file of names.
//!
//! Source: `batches.meta.txt` and `fine_label_names.txt` of the binary release.

pub(super) const CIFAR_10: &str = "airplane automobile bird cat deer dog frog horse ship truck";

/// The 100 fine labels, in alphabetical order.
pub(super) const CIFAR_100: &str = "\
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle \
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish \
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle \
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine \
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar \
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale \
    willow_tree wolf woman worm";
