"""The metadata of a cluster (KRaft): its log and snapshots on disk, and the state they fold to."""
