"""Objects of more than 1 MiB through pipes and sockets, while memory does not suffice."""

import os
import socket
import threading

import numpy as np

from common import show

ballast = np.ones(6_000_000)  # 48 MB, to push out the rest
data = np.arange(1_500_000, dtype=np.uint64).tobytes()  # 12 MB


def push_out():
    global ballast
    ballast += 1.0


def pass_through(what, send, receive):
    """Sends `data` by a thread and shows what arrives."""
    thread = threading.Thread(target=send)
    push_out()
    thread.start()
    show(what, receive())
    thread.join()


def write_all(fd, view):
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)


def pipe_read(fd, piece):
    out = []
    while got := os.read(fd, piece):
        out.append(got)
    os.close(fd)
    return b"".join(out)


for piece in (1 << 16, 5 << 20):
    r, w = os.pipe()
    pass_through("pipe", lambda: write_all(w, memoryview(data)), lambda: pipe_read(r, piece))


def receive_into(s, flags=0):
    buffer = bytearray(len(data))
    view = memoryview(buffer)
    while view:
        view = view[s.recv_into(view, 0, flags) :]
    return buffer


s, t = socket.socketpair()
pass_through("socketpair", lambda: s.sendall(data), lambda: receive_into(t))
pass_through("socketpair", lambda: s.sendall(data), lambda: receive_into(t, socket.MSG_WAITALL))

server = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(server.getsockname())
d, _ = server.accept()
pass_through("tcp", lambda: c.sendall(data), lambda: receive_into(d))


def send_parts(s):
    views = [memoryview(data)[i : i + 1_500_000] for i in range(0, len(data), 1_500_000)]
    while views:
        n = s.sendmsg(views)
        while views and n >= len(views[0]):
            n -= len(views.pop(0))
        if n:
            views[0] = views[0][n:]


def receive_parts(s):
    buffer = bytearray(len(data))
    view = memoryview(buffer)
    while view:
        half = len(view) // 2
        n, *_ = s.recvmsg_into([view[:half], view[half:]])
        view = view[n:]
    return buffer


pass_through("sendmsg", lambda: send_parts(c), lambda: receive_parts(d))

udp, sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(("127.0.0.1", 0))
buffer = bytearray(4 << 20)
for i in range(20):
    udp.sendto(data[i * 9000 : i * 9000 + 9000], sink.getsockname())
    if i % 5 == 0:
        push_out()
    n, _ = sink.recvfrom_into(memoryview(buffer)[i * 100_000 :])
    assert n == 9000
show("udp", buffer)

with open("/dev/zero", "rb", buffering=0) as f:
    push_out()
    print(f.readinto(buffer))
show("zero", buffer)
show("ballast", ballast)
