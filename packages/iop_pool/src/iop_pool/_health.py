"""How well one provider is: healthy, degraded, ejected, half-open (P10), fed by probes and by outcomes (P14)."""

from __future__ import annotations

from iop_pool._outcomes import Health, Outcome
from iop_pool._spec import HealthPolicy

__all__ = ["HealthState"]

_EXPONENT_MAX = 32  # 2**32 times any backoff is above every backoff_max_ms that makes sense


class HealthState:
    """The circuit breaker of one provider.

    `level` is what was last known of it (`unknown` only where a proof is still needed); `ejected` lies over it.
    `reopens_at` is when an ejected one becomes half-open: from then on one trial run at a time decides.
    """

    __slots__ = (
        "_backoffs",
        "_closed_at",
        "_policy",
        "ejected",
        "ejections",
        "failures",
        "half_open",
        "level",
        "reopens_at",
    )

    def __init__(self, policy: HealthPolicy, *, proof_needed: bool) -> None:
        self._policy = policy
        self.level = Health.UNKNOWN if proof_needed else Health.HEALTHY
        self.failures = 0
        self.ejected = False
        self.half_open = False
        self.reopens_at = 0.0
        self.ejections = 0
        self._backoffs = 0
        self._closed_at: float | None = None

    @property
    def shown(self) -> Health:
        """The `health` of the status (P11); half-open is still ejected, until a trial has succeeded."""
        return Health.EJECTED if self.ejected else self.level

    @property
    def steady(self) -> bool:
        """Nothing is amiss, so an `ok` changes nothing: the short way for nearly every release."""
        return self.failures == 0 and not self.ejected and self.level is not Health.UNKNOWN

    def adopt(self, policy: HealthPolicy, *, proof_needed: bool) -> None:
        """Go on under another policy; a proof that is no longer needed is no longer missing."""
        self._policy = policy
        if self.level is Health.UNKNOWN and not proof_needed:
            self.level = Health.HEALTHY

    def probed(self, health: Health, now: float, *, proof_needed: bool) -> None:
        """What a probe, or the owner, says about the provider."""
        if health is Health.EJECTED:
            # Said again while the backoff runs it is old news; said of a half-open one it is a failed trial.
            if not self.ejected or self.half_open:
                self._eject(now)
            return
        self._close(now)
        self.level = health
        if health is Health.UNKNOWN and not proof_needed:
            self.level = Health.HEALTHY

    def ended(self, outcome: Outcome, now: float, *, trial: bool) -> None:
        """A run ended with `outcome`; `trial` if it was the one that a half-open provider may have."""
        trial = trial and self.half_open  # a probe may have decided meanwhile
        if outcome is Outcome.BROKEN:
            if not self.ejected:
                self.failures += 1
                if self.failures >= self._policy.eject_after:
                    self._eject(now)
            elif trial:
                self._eject(now)
            # else: it began before the ejection and tells nothing new; the backoff must not grow with the load
            return
        answered = outcome is Outcome.OK or outcome is Outcome.CLIENT_ERROR
        if outcome is Outcome.OK or (trial and (answered or outcome is Outcome.BUSY)):
            # A busy provider is alive: it would not have been ejected for this either (P14).
            self._close(now)
            if self.level is Health.UNKNOWN:
                self.level = Health.HEALTHY
        elif answered and not self.ejected:
            self.failures = 0

    def reopen(self, now: float) -> None:
        """The backoff is over: one trial run may come."""
        if self.ejected and now >= self.reopens_at:
            self.half_open = True

    def _close(self, now: float) -> None:
        self.failures = 0
        if self.ejected:
            self.ejected = self.half_open = False
            self._closed_at = now

    def _eject(self, now: float) -> None:
        policy = self._policy
        if not self.ejected and self._closed_at is not None and now - self._closed_at >= policy.backoff_max_ms / 1000:
            self._backoffs = 0  # it was well for long enough that its past no longer counts
        delay_ms = min(policy.backoff_max_ms, policy.backoff_ms << self._backoffs)
        self._backoffs = min(self._backoffs + 1, _EXPONENT_MAX)
        self.ejected, self.half_open, self.failures = True, False, 0
        self.reopens_at = now + delay_ms / 1000
        self.ejections += 1
