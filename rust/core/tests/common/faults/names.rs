//! The faults, named by what they do.

macro_rules! faults {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            None,
            $($name,)*
        }

        /// All faults, without `None`.
        pub(crate) const FAULTS: &[Fault] = &[$(Fault::$name,)*];
    };
}

faults! {
    MatchesOneTokenTooMany,
    ServesAllOfTheLastNode,
    MatchesAcrossNamespaces,
    TreatsAllMediaAsEqual,
    AcceptsInvalidTokens,
    EvictsTheNewest,
    EvictsInInsertionOrder,
    RefreshesOnPeek,
    EvictsOneUnitTooMany,
    EvictsOneByteTooFew,
    EvictsIdleOneTickLate,
    ForgetsADroppedId,
    ReportsADroppedIdTwice,
    ForgetsSplitSegments,
    MiscountsSplits,
    ReusesAnId,
    IgnoresLeases,
    NeverEndsALease,
    KeepsPinsOnClear,
    TakesWithoutReporting,
    StoresCheckpointsOffByOne,
    ForgetsThatCheckpointsAreTrimmable,
    KeepsAllCheckpoints,
    ForgetsTheEndOfThePrompt,
    ExceedsTheLimit,
    KeepsReservationsOfAbortedPlans,
    KeepsUnreservedRoom,
    ForgetsJoinedSegments,
    JoinsInTheWrongOrder,
    CompactsToOnePartTooMany,
    CommitsStalePlans,
    CountsUnderOneLabel,
    CountsCoveredSequencesAsEntries,
    EvictsOneEntryTooFew,
    CountsOneUnitTooFew,
    PromisesWithoutRoom,
}
