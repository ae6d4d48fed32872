"""Wraps an encoder's packets into a playable stream: raw frames (mp3), ADTS (aac), FLAC, Ogg.

FFmpeg could do this as well, but its Ogg muxer always holds one packet back, which is 20 ms of
speech, and its other muxers add tables that are wrong in a stream of unknown length.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Sequence

OPUS_RATE = 48_000  # the clock of Opus in Ogg, independent of the rate of its input

# ISO/IEC 14496-3, table 1.18: ADTS identifies a rate by its index.
ADTS_RATES = (
    *(96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000),
    *(22_050, 16_000, 12_000, 11_025, 8_000),
)

FLAC_TOTAL = 21  # offset of the 36-bit sample count in STREAMINFO, from the lower half of a byte
_PAGE = struct.Struct("<4sBBqIIIB")
_FIRST_PAGE, _MIDDLE_PAGE, _LAST_PAGE = 2, 0, 4
_BITS_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


class BareFrames:
    """The framing of one stream; here of packets that need no container: MPEG audio frames."""

    def header(self) -> bytes:
        """Returns the header of the stream; called once."""
        return b""

    def add(self, packet: bytes) -> bytes:
        """Returns a packet framed for the stream, without delay."""
        return packet

    def end(self, packets: Sequence[bytes], samples: int) -> bytes:
        """Returns the last packets and the end of a stream that has ``samples`` samples."""
        return b"".join(self.add(packet) for packet in packets)


class AdtsFrames(BareFrames):
    """AAC-LC mono with an ADTS header before every packet (ISO/IEC 13818-7, section 6.2).

    Args:
        rate: sample rate in Hz, one of ``ADTS_RATES``.
    """

    def __init__(self, rate: int) -> None:
        self._rate = ADTS_RATES.index(rate)

    def add(self, packet: bytes) -> bytes:
        size = len(packet) + 7
        header = 0xFFF1  # sync word, MPEG-4, no checksum
        header = header << 2 | 1  # profile: low complexity
        header = header << 4 | self._rate
        header = header << 4 | 1  # not private; one channel
        header = header << 4  # neither original nor copyrighted
        header = header << 13 | size
        header = header << 11 | 0x7FF  # buffer fullness: not stated
        header = header << 2  # one raw data block
        return header.to_bytes(7, "big") + packet


class FlacFrames(BareFrames):
    """A native FLAC stream (RFC 9639, section 8).

    Args:
        info: the encoder's STREAMINFO block, with length 0: unknown.
    """

    def __init__(self, info: bytes) -> None:
        self._info = info

    def header(self) -> bytes:
        last_block = 0x80  # the last metadata block; its type is 0, STREAMINFO
        return b"fLaC" + struct.pack(">I", last_block << 24 | len(self._info)) + self._info


def flac_total(samples: int) -> bytes:
    """The five bytes at ``FLAC_TOTAL`` in the header of a 16-bit stream (RFC 9639, section 8.2)."""
    return (0xF << 36 | samples & (1 << 36) - 1).to_bytes(5, "big")  # F ends the sample size, 15


class OggOpus(BareFrames):
    """Opus in Ogg (RFC 3533 and RFC 7845), one page per packet.

    The last page states the exact length, so that a decoder returns as many samples as went in.

    Args:
        head: the encoder's OpusHead packet.
        rate: rate of the counted samples in Hz.
        packet_seconds: duration of a packet.
    """

    def __init__(self, head: bytes, rate: int, packet_seconds: float) -> None:
        self._head = head
        self._rate = rate
        self._step = round(packet_seconds * OPUS_RATE)
        (self._skip,) = struct.unpack_from("<H", head, 10)  # the encoder's pre-skip, in samples
        self._serial = secrets.randbits(32)  # concatenated streams must have different ones
        self._pages = 0
        self._position = 0

    def header(self) -> bytes:
        vendor = b"rt_drama3"
        tags = b"OpusTags" + struct.pack("<I", len(vendor)) + vendor + struct.pack("<I", 0)
        return self._page(self._head, _FIRST_PAGE, 0) + self._page(tags, _MIDDLE_PAGE, 0)

    def add(self, packet: bytes) -> bytes:
        self._position += self._step
        return self._page(packet, _MIDDLE_PAGE, self._position)

    def end(self, packets: Sequence[bytes], samples: int) -> bytes:
        length = self._skip - (-samples * OPUS_RATE // self._rate)
        pages = [self.add(packet) for packet in packets[:-1]]
        last = packets[-1] if packets else None
        return b"".join(pages) + self._page(last, _LAST_PAGE, length)

    def _page(self, packet: bytes | None, kind: int, position: int) -> bytes:
        sizes = b""
        if packet is not None:
            sizes = b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255])
        body = sizes + (packet or b"")
        facts = (b"OggS", 0, kind, position, self._serial, self._pages)
        self._pages += 1
        checksum = _ogg_checksum(_PAGE.pack(*facts, 0, len(sizes)) + body)
        return _PAGE.pack(*facts, checksum, len(sizes)) + body


def _ogg_checksum(page: bytes) -> int:
    """Ogg's CRC-32: zlib's polynomial with reversed bits and no inversion."""
    reversed_bits = zlib.crc32(page.translate(_BITS_REVERSED), 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    return int.from_bytes(reversed_bits.to_bytes(4, "little").translate(_BITS_REVERSED), "big")
