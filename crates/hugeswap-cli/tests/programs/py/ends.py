"""Children of threads: a pool of workers, then a thread that forks and whose child returns from the thread."""
import multiprocessing as mp
import os
import threading


def square(i):
    return i * i


def forker():
    pid = os.fork()
    if pid:
        print("child", os.waitpid(pid, 0)[1])


def main():
    texts = [str(i) * 4 for i in range(1_000_000)]
    with mp.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(square, range(1000))))
    for _ in range(3):
        thread = threading.Thread(target=forker)
        thread.start()
        thread.join()
    os.setgroups([0] * 5) if os.geteuid() == 0 else None
    print(sum(map(len, texts)))


if __name__ == "__main__":
    main()
