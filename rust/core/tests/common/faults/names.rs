//! The faults, each by what it does.

macro_rules! faults {
    ($($name:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            None,
            $($name,)*
        }

        /// All but none.
        pub(crate) const FAULTS: &[Fault] = &[$(Fault::$name,)*];
    };
}

faults! {
    MatchesOneTooMany,
    ServesAllOfTheLastNode,
    MatchesAcrossNamespaces,
    TakesAllMediaForTheSame,
    AcceptsInvalidTokens,
    EvictsTheNewest,
    EvictsInOrderOfArrival,
    RefreshesOnPeek,
    EvictsOneUnitMore,
    EvictsOneByteLess,
    EvictsIdleOneTickLate,
    ForgetsADroppedId,
    ReportsADroppedIdTwice,
    ForgetsWhatASplitReplaced,
    DoesNotCountASplit,
    GivesAnIdOutAgain,
    IgnoresLeases,
    NeverEndsALease,
    HoldsPinsAgainstClear,
    TakesWithoutReporting,
    StoresACheckpointOneOff,
    ForgetsThatACheckpointCanBeTrimmed,
    KeepsAllCheckpoints,
    ForgetsWhereThePromptEnds,
    ExceedsTheLimit,
    KeepsWhatAnAbortReserved,
    KeepsRoomThatWasGivenBack,
    ForgetsWhatWasJoined,
    JoinsInAnotherOrder,
    CompactsOnePartLess,
    CommitsWhatIsStale,
    CountsUnderOneLabel,
    CountsCoveredSequencesAsEntries,
    EvictsOneEntryLess,
    CountsAUnitTooFew,
    PromisesWithoutRoom,
}
