"""The faults of a world and their schedule: chosen by the seed, within the limits of the guarantees.

There are two kinds of faults. *Harmless* ones cost at most availability, so any number may overlap: pauses, cut and
slow networks, broken connections, slow disks, clock jumps. *Harmful* ones end a process, lose unsynced data, or flip a
stored bit. With three replicas and `min.insync.replicas=2` the cluster survives one such victim at a time, until it is
back in every ISR. So a harmful fault starts only when every node is up and every replica in sync. Only a kill, which
loses no written data, may come earlier, as long as every ISR has another member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from tidemill.broker.quorum.log import METADATA_FOLDER
from tidemill.log.segments.segment import read_batches
from tidemill.sim.cluster import Cluster, Machine

_PAUSE_S_MAX = 15.0
_CUT_S_MAX = 30.0
_DOWN_S_MAX = 20.0
_CLOCK_JUMP_MS_MAX = 3_600_000
_SLOW_DISK_S_MAX = 1.0
# The parts of a batch header that a start can verify: the length, and everything from the magic byte on.
_LENGTH = slice(8, 12)
_MAGIC_AT = 16


class Faults:
    """The schedule of faults."""

    def __init__(
        self,
        cluster: Cluster,
        rng: Random,
        is_healthy: Callable[[], bool],
        may_be_killed: Callable[[Machine], bool],
        client_hosts: list[str],
        *,
        mean_interval_s: float,
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        # How far the fastest clock was ever ahead.
        self.ahead_ms_max = max((each.clock.skew_ms for each in cluster.machines.values()), default=0)
        self._is_healthy = is_healthy
        self._may_be_killed = may_be_killed
        self._client_hosts = client_hosts
        self._mean_interval_s = mean_interval_s
        self._is_over = False
        self._usual_weather = replace(cluster.wires.weather)
        self._harmless: list[Callable[[], None]] = [
            self._pause,
            self._isolate,
            self._cut_pair,
            self._cut_client,
            self._reset,
            self._reset,
            self._storm,
            self._slow_disk,
            self._clock_jump,
        ]
        self._harmful: list[Callable[[Machine], None]] = [
            self._kill,
            self._power_failure,
            self._power_failure,
            self._restart,
            self._full_disk,
            self._bit_rot,
        ]

    def begin(self) -> None:
        self._cluster.scheduler.after(self._rng.expovariate(1 / self._mean_interval_s), self._next)

    def _next(self) -> None:
        if self._is_over:
            return
        machine = self._any_machine()
        chance = self._rng.random()
        if chance < 0.5 and self._is_healthy():
            self._rng.choice(self._harmful)(machine)
        elif chance < 0.25 and self._may_be_killed(machine):
            self._kill(machine)
        else:
            self._rng.choice(self._harmless)()
        self.begin()

    def end(self) -> None:
        """Heal everything at once."""
        self._is_over = True
        cluster = self._cluster
        cluster.trace.add("world", "faults end")
        self._calm()
        cluster.wires.heal_all()
        for machine in cluster.machines.values():
            self._full_speed(machine)
            self._free_disk(machine)
            if machine.process is not None:
                machine.process.loop.resume()
            cluster.start_if_down(machine)

    def _any_machine(self) -> Machine:
        return self._rng.choice(list(self._cluster.machines.values()))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._cluster.scheduler.after(delay_s, action)

    def _note(self, who: str, what: str) -> None:
        self._cluster.trace.add(who, what)

    # -- harmful ---------------------------------------------------------------------------------------------

    def _kill(self, machine: Machine) -> None:
        self._cluster.kill(machine)
        self._start_later(machine)

    def _power_failure(self, machine: Machine) -> None:
        self._cluster.cut_power(machine)
        self._start_later(machine)

    def _restart(self, machine: Machine) -> None:
        """A controlled shutdown. After a timeout the supervisor kills the process."""
        self._cluster.stop(machine)
        process = machine.process

        def look() -> None:
            if machine.process is process and process is not None:
                if self._rng.random() < 0.9:
                    self._later(1.0, look)
                    return
                self._cluster.kill(machine)
            self._start_later(machine)

        self._later(1.0, look)

    def _full_disk(self, machine: Machine) -> None:
        """Fill the disk for a while. A node that stops because of it is restarted repeatedly."""
        machine.disk.free_bytes = self._rng.randint(0, 2_000)
        machine.is_disk_faulty = True
        duration_s = self._rng.uniform(1, _DOWN_S_MAX)
        self._note(machine.host, f"its disk is full for {duration_s:.1f} s")
        self._later(duration_s, lambda: self._free_disk(machine))

    def _free_disk(self, machine: Machine) -> None:
        machine.disk.heal()
        machine.is_disk_faulty = False

    def _bit_rot(self, machine: Machine) -> None:
        """Cut the power and flip one stored bit.

        The bit is in a log's newest segment, which the next start reads. Older segments are read only by fetches;
        their damage fails the consumer's checksum, as with Apache Kafka.
        """
        self._cluster.cut_power(machine)
        places = []
        for path in self._replicated_logs(machine):
            for start, header, _ in read_batches(machine.disk.open(path), machine.disk.size(path)):
                places.append((path, range(start, start + header.size)))
        if places:
            path, batch = self._rng.choice(places)
            # Not in offsets or leader epochs: the checksum does not cover them.
            position = self._rng.choice((*batch[_LENGTH], *batch[_MAGIC_AT:]))
            bit = self._rng.randrange(8)
            machine.disk.flip_bit(path, position, bit)
            self._note(machine.host, f"bit {bit} of byte {position} of {path} is flipped")
        self._start_later(machine)

    def _replicated_logs(self, machine: Machine) -> Iterator[str]:
        """The newest segments on its disk of logs that other machines have too."""
        shape = self._cluster.shape
        newest: dict[str, str] = {}
        for path in machine.disk.contents():
            if path.endswith(".log"):
                folder, _, name = path.rpartition("/")
                newest[folder] = max(newest.get(folder, ""), name)
        for folder, name in newest.items():
            is_metadata = folder.endswith(METADATA_FOLDER)
            if (len(shape.controller_ids) if is_metadata else shape.replicas) > 1:
                yield f"{folder}/{name}"

    def _start_later(self, machine: Machine) -> None:
        delay_s = self._rng.uniform(0.1, self._rng.choice((1.0, _DOWN_S_MAX)))
        self._later(delay_s, lambda: self._cluster.start_if_down(machine))

    # -- harmless --------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        machine = self._any_machine()
        process = machine.process
        if process is None or process.loop.is_paused:
            return
        duration_s = self._rng.uniform(0.1, self._rng.choice((1.0, _PAUSE_S_MAX)))
        self._note(machine.host, f"pauses for {duration_s:.1f} s")
        process.loop.pause()
        self._later(duration_s, process.loop.resume)

    def _isolate(self) -> None:
        """Isolate a node from all others, in one direction or both. Its clients may still reach it."""
        machine = self._any_machine()
        others = [m.host for m in self._cluster.machines.values() if m is not machine]
        if self._rng.random() < 0.3:
            others += self._client_hosts
        ways = self._rng.choice(("from", "to", "from and to"))
        duration_s = self._rng.uniform(0.5, _CUT_S_MAX)
        self._note(machine.host, f"is cut off {ways} {len(others)} hosts for {duration_s:.1f} s")
        pairs = []
        for other in others:
            if "from" in ways:
                pairs.append((other, machine.host))
            if "to" in ways:
                pairs.append((machine.host, other))
        self._cut(pairs, duration_s)

    def _cut_pair(self) -> None:
        hosts = [machine.host for machine in self._cluster.machines.values()]
        if len(hosts) < 2:
            return
        one, other = self._rng.sample(hosts, 2)
        duration_s = self._rng.uniform(0.5, _CUT_S_MAX)
        pairs = [(one, other)] + [(other, one)] * (self._rng.random() < 0.5)
        self._note(one, f"is cut from {other}, {len(pairs)} ways, for {duration_s:.1f} s")
        self._cut(pairs, duration_s)

    def _cut_client(self) -> None:
        if not self._client_hosts:
            return
        client, machine = self._rng.choice(self._client_hosts), self._any_machine()
        duration_s = self._rng.uniform(0.5, _CUT_S_MAX)
        pair = self._rng.choice(((client, machine.host), (machine.host, client)))
        self._note(client, f"{pair[0]} does not reach {pair[1]} for {duration_s:.1f} s")
        self._cut([pair], duration_s)

    def _cut(self, pairs: list[tuple[str, str]], duration_s: float) -> None:
        wires = self._cluster.wires
        for pair in pairs:
            wires.cut(*pair)

        def heal() -> None:
            for pair in pairs:
                wires.heal(*pair)

        self._later(duration_s, heal)

    def _reset(self) -> None:
        for _ in range(self._rng.randint(1, 5)):
            broken = self._cluster.wires.reset_some()
            if broken is not None:
                self._note("world", f"the connection {broken} breaks")

    def _storm(self) -> None:
        weather = self._cluster.wires.weather
        weather.latency_s_max = self._rng.choice((0.01, 0.05, 0.2))
        weather.slow_share = self._rng.choice((0.05, 0.3))
        weather.slow_s_max = self._rng.choice((0.5, 3.0))
        duration_s = self._rng.uniform(1, 20)
        self._note("world", f"the network is slow for {duration_s:.1f} s")
        self._later(duration_s, self._calm)

    def _calm(self) -> None:
        self._cluster.wires.weather = replace(self._usual_weather)

    def _slow_disk(self) -> None:
        machine = self._any_machine()
        machine.speed.s_max = self._rng.uniform(0.05, _SLOW_DISK_S_MAX)
        duration_s = self._rng.uniform(1, 20)
        self._note(machine.host, f"its disk takes up to {machine.speed.s_max:.2f} s for {duration_s:.1f} s")
        self._later(duration_s, lambda: self._full_speed(machine))

    def _full_speed(self, machine: Machine) -> None:
        machine.speed.s_max = 0.004

    def _clock_jump(self) -> None:
        machine = self._any_machine()
        jump_ms = self._rng.randint(-_CLOCK_JUMP_MS_MAX, _CLOCK_JUMP_MS_MAX)
        # Never more than an hour off.
        machine.clock.skew_ms = max(
            -_CLOCK_JUMP_MS_MAX, min(_CLOCK_JUMP_MS_MAX, machine.clock.skew_ms + jump_ms)
        )
        self.ahead_ms_max = max(self.ahead_ms_max, machine.clock.skew_ms)
        self._note(machine.host, f"its clock is {machine.clock.skew_ms / 1000:.0f} s off")
