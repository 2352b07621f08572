//! A communicator in virtual time does what every communicator must do.

use distributed::Communicator;
use simulate::run_virtual_ranks;

use crate::conformance;

#[test]
fn ranks_in_virtual_time_conform() {
    for (world_size, network) in [
        (1, "1gbe"),
        (3, "10gbe"),
        (4, "ib-edr@2"),
        (3, "1gbe@2:shared"),
    ] {
        let libraries = run_virtual_ranks(world_size, &network.parse().unwrap(), |communicator| {
            conformance::check(&communicator);
            communicator.library()
        });
        assert_eq!(libraries, vec![format!("virtual {network}"); world_size]);
    }
}
