"""
Run what data/ lacks, one campaign after the other, and write its tables and figures. A stopped campaign continues.

    python -m study --workers 2                   # everything takes days of one core
    python -m study --only ages --seconds 600     # start no run after ten minutes; call again to continue
    python -m study --seconds 0                   # tables and figures only
"""

from . import (
    actors,
    ages,
    chain_sizes,
    compiled,
    control,
    demonstrations,
    doorkey_sizes,
    dose_response,
    learning,
    modern_dqn,
    plane,
    report,
    summary,
    wall_clock,
    whole_way,
)
from .campaign import options, run, selected

CAMPAIGNS = learning.CAMPAIGNS | {
    each.name: each
    for each in (
        dose_response.CAMPAIGN,
        modern_dqn.CAMPAIGN,
        *demonstrations.CAMPAIGNS,
        chain_sizes.CAMPAIGN,
        doorkey_sizes.CAMPAIGN,
        *ages.CAMPAIGNS,
        *plane.CAMPAIGNS,
        *control.CAMPAIGNS,
        actors.CAMPAIGN,
        wall_clock.CAMPAIGN,
        compiled.CAMPAIGN,
        whole_way.CAMPAIGN,
    )
}


def main(arguments: list[str] | None = None) -> None:
    args = options(__doc__, list(CAMPAIGNS)).parse_args(arguments)
    for name in selected(list(CAMPAIGNS), args.only):
        run(CAMPAIGNS[name], args.out, args.workers, args.deadline)
        report.write(CAMPAIGNS[name], args.out)
    if not args.only:
        summary.write(args.out)


if __name__ == "__main__":
    main()
